"""Partitions of an epoch's files: all rows, evenly, in few files each."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from compss_train.data.order import block_order, partition_files, rank_row_ranges
from tests.samplers.numbered_files import EPOCHS, SIZES

epochs = {"seed": st.integers(0, 2**40), "epoch": EPOCHS}
cases = {"sizes": SIZES, "number": st.integers(1, 9), **epochs}


def rows_in(row_ranges):
    return [(row_range.file, row) for row_range in row_ranges for row in range(row_range.start, row_range.stop)]


def all_rows(sizes):
    return [(file, row) for file, size in enumerate(sizes) for row in range(size)]


def partition_for_ranks(sizes, number, seed, epoch, **options):
    return [rank_row_ranges(sizes, number, rank, seed, epoch, **options) for rank in range(number)]


@given(**cases)
def test_every_row_is_once_in_partitions_of_about_one_size(sizes, number, seed, epoch):
    partitions = partition_files(sizes, number, seed, epoch)
    assert sorted(row for row_ranges in partitions for row in rows_in(row_ranges)) == all_rows(sizes)
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
        firsts = [[row_ranges[0].file for row_ranges in partition([4] * 6, 3, 0, epoch)] for epoch in range(epochs)]
        for rank in range(3):
            assert chisquare(np.bincount([row[rank] for row in firsts], minlength=6)).pvalue > 0.001


def test_partitions_are_in_an_order_of_their_own():
    for partition in (partition_files, partition_for_ranks):
        for rank in range(3):
            is_first = [
                partition([2] * 3, 3, 0, epoch)[rank][0].file == block_order(0, epoch, 3)[0] for epoch in range(300)
            ]
            assert 60 < sum(is_first) < 140


@given(**cases, shuffle=st.booleans())
def test_ranks_get_as_many_rows_each_and_every_row_with_few_twice(sizes, number, seed, epoch, shuffle):
    of_ranks = partition_for_ranks(sizes, number, seed, epoch, shuffle=shuffle)
    assert all(0 <= each.start < each.stop <= sizes[each.file] for row_ranges in of_ranks for each in row_ranges)
    partitions = [rows_in(row_ranges) for row_ranges in of_ranks]
    assert {len(row_ranges) for row_ranges in partitions} == {-(-sum(sizes) // number)}
    times = Counter(row for row_ranges in partitions for row in row_ranges)
    assert sorted(times) == all_rows(sizes)
    assert times.total() - len(times) <= number - 1
    assert all(len(set(row_ranges)) == len(row_ranges) for row_ranges in partitions)
    assert max(times.values()) - min(times.values()) <= 1  # however few rows there are


@given(**cases)
def test_without_a_shuffle_ranks_get_consecutive_rows_for_any_seed(sizes, number, seed, epoch):
    rows = all_rows(sizes)
    size = -(-len(rows) // number)
    for rank, row_ranges in enumerate(partition_for_ranks(sizes, number, seed, epoch, shuffle=False)):
        assert rows_in(row_ranges) == [rows[n % len(rows)] for n in range(rank * size, (rank + 1) * size)]
