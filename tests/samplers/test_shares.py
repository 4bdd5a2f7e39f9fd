"""Shares of an epoch's files: all rows, evenly, in few files each."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from compss_train.data.order import block_order
from compss_train.data.row_ranges import RowRange, partition_files, rank_row_ranges
from tests.samplers.files import EPOCHS, SIZES, rows_of

epochs = {"seed": st.integers(0, 2**40), "epoch": EPOCHS}
cases = {"sizes": SIZES, "shares": st.integers(1, 9), **epochs}


def rows_in(share):
    return [(row_range.file, row) for row_range in share for row in rows_of(row_range)]


def all_rows(sizes):
    return [(file, row) for file, size in enumerate(sizes) for row in range(size)]


def owners(sizes, shares, seed, epoch, **options):
    return [rank_row_ranges(sizes, shares, owner, seed, epoch, **options) for owner in range(shares)]


@given(**cases)
def test_every_row_is_dealt_once_in_shares_of_about_one_size(sizes, shares, seed, epoch):
    dealt = partition_files(sizes, shares, seed, epoch)
    assert sorted(row for share in dealt for row in rows_in(share)) == all_rows(sizes)
    lengths = [sum(map(len, share)) for share in dealt]
    assert len(lengths) == shares
    assert max(lengths) - min(lengths) <= 1


@given(**cases)
def test_a_dealt_share_is_whole_files_but_for_its_ends(sizes, shares, seed, epoch):
    for share in partition_files(sizes, shares, seed, epoch):
        assert all(len(row_range) == sizes[row_range.file] for row_range in share[1:-1])
        assert all(row_range.start < row_range.stop for row_range in share)
        assert all(row_range.start == 0 for row_range in share[1:])
        assert all(row_range.stop == sizes[row_range.file] for row_range in share[:-1])
        assert len({row_range.file for row_range in share}) == len(share)


@given(**cases)
def test_dealt_and_even_shares_are_functions_of_seed_and_epoch(sizes, shares, seed, epoch):
    assert partition_files(sizes, shares, seed, epoch) == partition_files(tuple(sizes), shares, seed, epoch)
    assert owners(sizes, shares, seed, epoch) == owners(tuple(sizes), shares, seed, epoch)


def test_epochs_and_seeds_deal_differently():
    for deal in (partition_files, owners):
        dealt = [deal([5] * 12, 3, seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
        assert len(set(map(str, dealt))) == 4


def test_every_owner_gets_every_file_first_about_as_often():
    epochs = 600
    for deal in (partition_files, owners):
        firsts = [[share[0].file for share in deal([4] * 6, 3, 0, epoch)] for epoch in range(epochs)]
        for owner in range(3):
            assert chisquare(np.bincount([row[owner] for row in firsts], minlength=6)).pvalue > 0.001


def test_shares_go_to_their_owners_in_an_order_of_their_own():
    for deal in (partition_files, owners):
        for owner in range(3):
            is_first = [
                deal([2] * 3, 3, 0, epoch)[owner][0].file == block_order(0, epoch, 3)[0] for epoch in range(300)
            ]
            assert 60 < sum(is_first) < 140


@given(**cases, shuffle=st.booleans())
def test_even_shares_are_of_one_size_and_hold_every_row_with_few_twice(sizes, shares, seed, epoch, shuffle):
    dealt = [rows_in(share) for share in owners(sizes, shares, seed, epoch, shuffle=shuffle)]
    assert {len(share) for share in dealt} == {-(-sum(sizes) // shares)}
    times = Counter(row for share in dealt for row in share)
    assert sorted(times) == all_rows(sizes)
    assert times.total() - len(times) <= shares - 1
    assert all(len(set(share)) == len(share) for share in dealt)
    assert max(times.values()) - min(times.values()) <= 1  # however few rows there are


@given(**cases, shuffle=st.booleans())
def test_an_owner_reads_each_file_in_one_go_and_no_empty_stretch(sizes, shares, seed, epoch, shuffle):
    for share in owners(sizes, shares, seed, epoch, shuffle=shuffle):
        assert len({row_range.file for row_range in share}) == len(share)
        assert all(0 <= row_range.start < row_range.stop <= sizes[row_range.file] for row_range in share)


@given(**cases)
def test_without_a_shuffle_shares_are_consecutive_rows_whatever_the_seed(sizes, shares, seed, epoch):
    rows = all_rows(sizes)
    size = -(-len(rows) // shares)
    for owner, share in enumerate(owners(sizes, shares, seed, epoch, shuffle=False)):
        wanted = [rows[number % len(rows)] for number in range(owner * size, (owner + 1) * size)]
        assert sorted(rows_in(share)) == sorted(wanted)
        if not any(row_range.wrapped for row_range in share):  # no file at both ends
            assert rows_in(share) == wanted


def test_a_stretch_knows_its_place_and_length():
    row_range = RowRange(3, 4, 9)
    assert (row_range.origin, len(row_range), len(RowRange(3, 4, 9, wrapped=2))) == ((3, 4), 5, 7)
