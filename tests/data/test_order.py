"""Random orders are functions of seed and epoch; batches have equal sizes."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from compss_train.data.order import Batching, block_order, row_order, sample_order, worker_seed

seeds = st.integers(0, 2**40)


@given(seed=seeds, epoch=st.integers(0, 100), size=st.integers(1, 50))
def test_orders_are_permutations_and_functions_of_seed_and_epoch(seed, epoch, size):
    for order in (
        lambda e: block_order(seed, e, size),
        lambda e: row_order(seed, e, 3, size),
        lambda e: sample_order(seed, e, size),
    ):
        assert sorted(order(epoch)) == list(range(size))
        np.testing.assert_array_equal(order(epoch), order(epoch))


def test_epochs_seeds_and_blocks_have_orders_of_their_own():
    orders = [sample_order(seed, epoch, 100).tobytes() for seed in range(5) for epoch in range(5)]
    orders += [row_order(0, 0, block, 100).astype(np.int32).tobytes() for block in range(5)]
    assert len(set(orders)) == len(orders)


@pytest.mark.parametrize(
    "order",
    [lambda seed: sample_order(seed, 1, 8), lambda seed: block_order(seed, 1, 8)],
    ids=["samples", "blocks"],
)
def test_permutations_are_uniform(order):
    """Each of 8 items is in each of 8 places equally often, and each of the 56 ordered pairs comes first."""
    drawn = np.array([order(seed) for seed in range(4000)])
    for item in range(8):
        places = np.nonzero(drawn == item)[1]
        assert chisquare(np.bincount(places, minlength=8)).pvalue > 1e-4
    pairs = Counter(map(tuple, drawn[:, :2].tolist()))
    assert chisquare([pairs[i, j] for i in range(8) for j in range(8) if i != j]).pvalue > 1e-4


@given(seed=st.integers(0, 2**63 - 1))
def test_worker_seeds_are_distinct_and_worker_0_has_the_seed(seed):
    drawn = [worker_seed(seed, worker) for worker in range(20)]
    assert drawn[0] == seed
    assert len(set(drawn)) == 20
    assert all(0 <= s < 2**63 for s in drawn)


def check_bounds(bounds, rows):
    assert bounds[0][0] == 0
    assert bounds[-1][1] == rows
    assert all(stop == start for (_, stop), (start, _) in pairwise(bounds))
    sizes = [stop - start for start, stop in bounds]
    assert max(sizes) - min(sizes) <= 1
    return sizes


@given(rows=st.integers(1, 500), data=st.data())
def test_a_number_of_batches_uses_every_sample(rows, data):
    number = data.draw(st.integers(1, rows))
    assert len(check_bounds(Batching(number=number).bounds(rows), rows)) == number


@given(rows=st.integers(1, 500), size=st.integers(1, 600))
def test_a_batch_size_is_the_most_and_no_batch_more_is_made_than_needed(rows, size):
    sizes = check_bounds(Batching(size=size).bounds(rows), rows)
    assert max(sizes) <= size
    assert len(sizes) == -(-rows // size)
