"""Random orders are functions of seed and epoch; rows are divided evenly."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train.data.order import (
    block_order,
    partition_files,
    rank_row_ranges,
    row_order,
    sample_order,
    worker_seed,
)
from compss_train.training.total_shuffle import cut_into_pieces
from tests.helpers.tolerances import chance_of
from tests.samplers.numbered_files import EPOCHS, SIZES

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


@pytest.mark.parametrize(
    "order",
    [lambda seed: sample_order(seed, 1, 8), lambda seed: block_order(seed, 1, 8)],
    ids=["samples", "blocks"],
)
def test_permutations_are_uniform(order):
    """Each of 8 items is in each of 8 places equally often, and each of the 56 ordered pairs comes
    first.
    """
    drawn = np.array([order(seed) for seed in range(4000)])
    for item in range(8):
        places = np.nonzero(drawn == item)[1]
        assert chance_of(np.bincount(places, minlength=8)) > 1e-4
    pairs = Counter(map(tuple, drawn[:, :2].tolist()))
    assert chance_of([pairs[i, j] for i in range(8) for j in range(8) if i != j]) > 1e-4


@given(seed=st.integers(0, 2**63 - 1))
def test_worker_seeds_are_distinct_and_worker_0_has_the_seed(seed):
    drawn = [worker_seed(seed, worker) for worker in range(20)]
    assert drawn[0] == seed
    assert len(set(drawn)) == 20
    assert all(0 <= s < 2**63 for s in drawn)


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.lists(st.lists(st.integers(0, 10**6), max_size=20), min_size=1, max_size=5),
)
def test_pieces_hold_samples_once_and_numbers_find_them(chunk_sizes, drawn):
    """Also where a group passes over a sample several times, or over none."""
    total = sum(chunk_sizes)
    samples = [np.array(group, np.int64) % total for group in drawn]
    starts = np.cumsum([0, *chunk_sizes[:-1]]).tolist()
    pieces_of_chunks, numbers_of_groups = cut_into_pieces(samples, starts)
    gathered = [[] for _ in samples]
    for start, pieces in zip(starts, pieces_of_chunks, strict=True):
        assert pieces.groups == sorted(set(pieces.groups))
        for group, (low, high) in zip(pieces.groups, pairwise(pieces.bounds.tolist()), strict=True):
            assert low < high
            gathered[group] += (pieces.rows[low:high] + start).tolist()
    for mine, wanted, numbers in zip(gathered, samples, numbers_of_groups, strict=True):
        assert mine == np.unique(wanted).tolist()
        np.testing.assert_array_equal(np.array(mine, np.int64)[numbers], wanted)
    assert sum(len(pieces.rows) for pieces in pieces_of_chunks) == sum(map(len, gathered))


epochs = {"seed": st.integers(0, 2**40), "epoch": EPOCHS}
cases = {"sizes": SIZES, "number": st.integers(1, 9), **epochs}


def rows_in(row_ranges):
    return [
        (row_range.file, row)
        for row_range in row_ranges
        for row in range(row_range.start, row_range.stop)
    ]


def all_rows(sizes):
    return [(file, row) for file, size in enumerate(sizes) for row in range(size)]


def partition_for_ranks(sizes, number, seed, epoch, **options):
    return [rank_row_ranges(sizes, number, rank, seed, epoch, **options) for rank in range(number)]


@given(**cases)
def test_every_row_is_once_in_partitions_of_about_one_size(sizes, number, seed, epoch):
    partitions = partition_files(sizes, number, seed, epoch)
    assert sorted(row for row_ranges in partitions for row in rows_in(row_ranges)) == all_rows(
        sizes
    )
    lengths = [sum(map(len, row_ranges)) for row_ranges in partitions]
    assert len(lengths) == number
    assert max(lengths) - min(lengths) <= 1


@given(**cases)
def test_a_partition_is_whole_files_but_for_its_ends(sizes, number, seed, epoch):
    for row_ranges in partition_files(sizes, number, seed, epoch):
        assert all(len(row_range) == sizes[row_range.file] for row_range in row_ranges[1:-1])
        assert all(row_range.start < row_range.stop for row_range in row_ranges)
        assert all(row_range.start == 0 for row_range in row_ranges[1:])
        assert all(row_range.stop == sizes[row_range.file] for row_range in row_ranges[:-1])
        assert len({row_range.file for row_range in row_ranges}) == len(row_ranges)


def test_partitions_are_functions_of_seed_and_epoch():
    for partition in (partition_files, partition_for_ranks):
        partitions = [partition([5] * 12, 3, seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
        assert len(set(map(str, partitions))) == 4
        assert partition((5,) * 12, 3, 1, 1) == partitions[-1]


def test_every_rank_gets_every_file_first_about_as_often():
    epochs = 600
    for partition in (partition_files, partition_for_ranks):
        firsts = [
            [row_ranges[0].file for row_ranges in partition([4] * 6, 3, 0, epoch)]
            for epoch in range(epochs)
        ]
        for rank in range(3):
            assert chance_of(np.bincount([row[rank] for row in firsts], minlength=6)) > 0.001
