"""Queues return each sample once; reservoirs draw uniformly, repeat and evict."""

import queue
from collections import Counter
from functools import partial
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train import BufferSpec
from compss_train.buffers import FIRO, BatchReservoir, Reservoir
from tests.buffers.kinds import (
    STEPS,
    Thread,
    drain,
    make,
    numbers,
    put_some,
    samples,
    until_waiting,
)
from tests.helpers.tolerances import chance_of


def test_each_held_sample_is_equally_likely_to_come_next():
    buffer = FIRO(6, 0, seed=1)
    firsts = Counter()
    pairs = Counter()
    for _ in range(3000):
        buffer.put_many(list(range(6)))
        order = [buffer.get(), buffer.get(), *buffer.get_batch(4)]
        assert sorted(order) == list(range(6))
        firsts[order[0]] += 1
        pairs[tuple(order[2:4])] += 1
    assert chance_of([firsts[i] for i in range(6)]) > 1e-4
    assert chance_of([pairs[i, j] for i in range(6) for j in range(6) if i != j]) > 1e-4


@given(
    samples=st.integers(1, 12),
    passes=st.integers(2, 4),
    size=st.integers(1, 12),
    seed=st.integers(0, 99),
)
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
    firsts = Counter()
    orders = set()
    for seed in range(800):
        buffer = FIRO(5, 0, passes=3, seed=seed)
        buffer.put_many(list(range(5)))
        buffer.signal_reception_over()
        got = drain(buffer.get)
        orders |= {tuple(got[:5]), tuple(got[5:10])}
        firsts[got[5]] += 1
    assert len(orders) > 100
    assert chance_of([firsts[i] for i in range(5)]) > 1e-4


def everything(buffer):
    buffer.signal_reception_over()
    return numbers(buffer.get_batch(buffer.capacity))


def used_reservoir(kind, seed):
    """Return a reservoir after puts, gets and evictions, with seen and unseen samples."""
    buffer = make(kind, 20, 5, seed=seed)
    random = np.random.default_rng(seed)
    for number in range(70):
        while len(buffer) == buffer.unseen == buffer.capacity:
            buffer.get_batch(3)
        buffer.put(number)
        if buffer.is_ready() and random.random() < 0.8:
            buffer.get_batch(2)
    assert 0 < buffer.unseen < len(buffer) == 20
    return buffer


@pytest.mark.parametrize("kind", ["Reservoir", "BatchReservoir"])
@pytest.mark.parametrize("seed", range(3))
def test_draws_are_uniform_over_what_is_held_seen_or_not(kind, seed):
    buffer = used_reservoir(kind, seed)
    times = Counter()
    for _ in range(2000):
        times.update(numbers(buffer.get_batch(4)))
    assert set(times) == set(everything(buffer))
    assert len(times) == 20
    assert chance_of(list(times.values())) > 1e-4


def test_a_batch_of_a_reservoir_consists_of_independent_draws():
    buffer = Reservoir(4, 0, seed=2)
    buffer.put_many(list(range(4)))
    pairs = Counter(tuple(buffer.get_batch(2)) for _ in range(8000))
    assert chance_of([pairs[i, j] for i in range(4) for j in range(4)]) > 1e-4


def test_a_batch_reservoir_returns_batches_of_different_samples():
    buffer = BatchReservoir(5, 0, 2, seed=2)
    buffer.put_many(list(range(5)))
    pairs = Counter(tuple(buffer.get()) for _ in range(8000))
    assert chance_of([pairs[i, j] for i in range(5) for j in range(5) if i != j]) > 1e-4


def test_each_seen_sample_is_equally_likely_to_be_evicted():
    one = Counter()
    two = Counter()
    for seed in range(2000):
        buffer = Reservoir(8, 0, seed=seed)
        seen = []
        buffer.put_many(list(range(5)))
        while buffer.unseen:
            seen.append(buffer.get())
        seen = list(dict.fromkeys(seen))  # in the order in which they were got first
        buffer.put_many([5, 6, 7])
        evicts_two = seed % 2
        buffer.put_many([8, 9][: 1 + evicts_two])
        gone = set(range(9 + evicts_two)) - set(everything(buffer))
        assert gone < set(range(5))
        (two if evicts_two else one).update(seen.index(number) for number in gone)
    assert sum(two.values()) == 2 * sum(one.values()) == 2000
    assert chance_of([one[i] for i in range(5)]) > 1e-4
    assert chance_of([two[i] for i in range(5)]) > 1e-4


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("lifo", 10), "'lifo'"),
        ((1, 10), "1: choose one of"),
        (("firo", 0), "capacity=0"),
        (("firo", 10, 11), "threshold=11"),
        (("firo", 10, -1), "threshold=-1"),
        (("reservoir", 10, 2.5), "threshold=2.5"),
        (("fifo", 10, 3), "threshold=3"),
        (("reservior", 10), "did you mean Reservoir?"),
        (("simpairedreservoir", 10), "a SimPairedReservoir requires sweep_size="),
        (("simpairedreservoir", 10, 7, 3, 2), "sweep_size=3, nb_time_steps=2"),
        (("simpairedreservoir", 1, 1, 3, 2), "capacity=1"),
        (("simpairedreservoir", 10, 5, 3), "a SimPairedReservoir requires nb_time_steps="),
        (("simpairedreservoir", 10, 5, 0, 4), "sweep_size=0"),
        (("simpairedreservoir", 10, 5, 3, 1), "nb_time_steps=1"),
        (("simpairedreservoir", 10, 11, 3, 4), "threshold=11"),
        (("reservoir", 10, 5, 3), "sweep_size=3"),
        (("fifo", 10, None, None, 4), "nb_time_steps=4"),
        (("fifo", 10, None, None, None, 2), "passes=2"),
        (("firo", 10, None, None, None, 0), "passes=0"),
        (("firo", 10, None, None, None, 1, 2), "max_repeats=2: a FIRO has no max_repeats"),
        (("reservoir", 10, None, None, None, 1, 0), "max_repeats=0"),
    ],
    ids=str,
)
def test_what_cannot_be_made_is_an_error_at_once(arguments, name, raises):
    with raises(ValueError, name):
        BufferSpec(*arguments)


# Limited repetition


RESERVOIRS = ("Reservoir", "BatchReservoir", "SimPairedReservoir")


def limited(kind, capacity, threshold, size, limit):
    pairs = {"sweep_size": 200, "nb_time_steps": STEPS} if kind == "SimPairedReservoir" else {}
    return BufferSpec(kind, capacity, threshold, max_repeats=limit, **pairs).make(size, seed=1)


@pytest.mark.parametrize("kind", RESERVOIRS)
@given(
    capacity=st.integers(2, 12),
    size=st.integers(1, 6),
    room=st.integers(0, 12),
    limit=st.integers(1, 4),
    todo=st.lists(
        st.tuples(st.sampled_from(["put", "get", "load"]), st.integers(1, 9)), max_size=40
    ),
)
def test_a_reservoir_returns_at_most_so_many_times_what_was_put(
    kind, capacity, size, room, limit, todo
):
    """Over its life, saves included; and puts and gets never both wait for each other."""
    size = min(size, capacity)
    make_one = partial(limited, kind, capacity, max(0, capacity - room), size, limit)
    buffer = make_one()
    number = 0
    for what, times in todo:
        saved = buffer.state_dict()
        last = make_one()
        last.load_state_dict(saved)
        if what == "load":
            buffer, last = last, buffer
        elif what == "put":
            stored = put_some(buffer, range(number, number + times))
            number += stored
            if stored < times:
                assert numbers(buffer.get_batch(size, block=False))
        else:
            can_put = put_some(last, [number])
            try:
                got = numbers(buffer.get_batch(size, block=False))
            except queue.Empty:
                assert can_put
                continue
            if kind != "SimPairedReservoir":
                assert len(set(got)) == size
                can_put = True
            assert not can_put or buffer.samples_got <= limit * buffer.samples_put
    before = buffer.samples_got
    buffer.signal_reception_over()
    batches = drain(lambda: buffer.get_batch(size))
    left = [number for batch in batches for number in numbers(batch)]
    assert len(left) == buffer.samples_got - before
    assert buffer.repetitions()[0] == 0 or kind == "SimPairedReservoir" or not number


@pytest.mark.parametrize("kind", RESERVOIRS)
def test_a_get_waits_for_samples_rather_than_repeat_and_counts_the_seconds(kind):
    buffer = limited(kind, 16, 2, 2, 2)
    buffer.put_many(samples(buffer, range(4)))
    batch_samples = len(numbers(buffer.get_batch(2)))
    for _ in range(8 // batch_samples - 1):
        buffer.get_batch(2)
    assert buffer.waited == 0.0
    waiting = Thread(buffer.get_batch, 2)
    until_waiting(buffer)
    with pytest.raises(queue.Empty):
        buffer.get_batch(2, block=False)
    buffer.put_many(samples(buffer, range(4, 4 + batch_samples // 2)))
    assert len(numbers(waiting.result())) == batch_samples
    assert buffer.waited > 0.0
    assert buffer.samples_got == 8 + batch_samples == 2 * buffer.samples_put
    ended = Thread(buffer.get_batch, 2)
    until_waiting(buffer)
    buffer.signal_reception_over()
    assert len(numbers(ended.result())) == batch_samples


@given(limit=st.integers(100, 200), seed=st.integers(0, 9))
def test_a_limit_that_is_not_reached_changes_no_draw(limit, seed):
    got = []
    for options in ({}, {"max_repeats": limit}):
        buffer = BatchReservoir(9, 3, 3, seed=seed, **options)
        got.append([])
        for number in range(0, 30, 3):
            buffer.put_many([number, number + 1, number + 2])
            got[-1] += [buffer.get(), buffer.get()]
    assert got[0] == got[1]
