"""FIFO and FIRO return each sample once."""

from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from compss_train.buffers import FIRO, BufferFullError
from tests.buffers.kinds import drain, make, numbers


def test_a_batch_waits_for_all_of_its_samples_until_reception_is_over():
    fifo = make("FIFO", 4)
    fifo.put_many([0, 1, 2])
    assert numbers(fifo.get_batch(2)) == [0, 1]
    fifo.signal_reception_over()
    assert fifo.get_batch(3) == [2]


def test_each_of_those_held_is_equally_likely_to_come_first_and_second():
    buffer, firsts, pairs = FIRO(6, 0, seed=1), Counter(), Counter()
    for _ in range(3000):
        buffer.put_many(list(range(6)))
        order = [buffer.get(), buffer.get(), *buffer.get_batch(4)]
        assert sorted(order) == list(range(6))
        firsts[order[0]] += 1
        pairs[tuple(order[2:4])] += 1
    assert chisquare([firsts[i] for i in range(6)]).pvalue > 1e-4
    assert chisquare([pairs[i, j] for i in range(6) for j in range(6) if i != j]).pvalue > 1e-4


@settings(max_examples=60)
@given(samples=st.integers(1, 12), passes=st.integers(2, 4), size=st.integers(1, 12), seed=st.integers(0, 99))
def test_passes_return_every_sample_that_many_times_in_passes(samples, passes, size, seed):
    buffer = FIRO(12, 0, passes=passes, seed=seed)
    for number in range(samples):
        buffer.put(number)
        assert not buffer.is_ready()
    buffer.signal_reception_over()
    batches = drain(lambda: buffer.get_batch(size))
    assert len(batches) == -(-samples * passes // size)
    got = list(chain(*batches))
    for start in range(0, samples * passes, samples):
        assert sorted(got[start : start + samples]) == list(range(samples))
    assert buffer.repetitions().tolist() == [0] * passes + [samples]
    assert len(buffer) == 0


def test_passes_differ_and_are_uniform():
    firsts, orders = Counter(), set()
    for seed in range(800):
        buffer = FIRO(5, 0, passes=3, seed=seed)
        buffer.put_many(list(range(5)))
        buffer.signal_reception_over()
        got = drain(buffer.get)
        orders |= {tuple(got[:5]), tuple(got[5:10])}
        firsts[got[5]] += 1
    assert len(orders) > 100
    assert chisquare([firsts[i] for i in range(5)]).pvalue > 1e-4


def test_more_samples_than_passes_have_room_for_are_an_error_and_no_waiting():
    buffer = FIRO(3, 0, passes=2)
    with pytest.raises(BufferFullError, match="capacity for all samples") as raised:
        buffer.put_many(list(range(5)))
    assert raised.value.stored == 3


@pytest.mark.parametrize("passes", [0, -1, 1.5, True])
def test_passes_are_a_count(passes):
    with pytest.raises(ValueError, match=f"passes={passes}"):
        FIRO(3, 0, passes=passes)


def test_seeds_fix_the_draws():
    orders = []
    for seed in (3, 3, 4, None, None):
        buffer = FIRO(40, 0, seed=seed)
        buffer.put_many(np.arange(40))
        orders.append(buffer.get_batch(40).tolist())
    assert orders[0] == orders[1]
    assert len({tuple(order) for order in orders}) == 4
