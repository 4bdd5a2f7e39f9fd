"""Pieces of blocks hold what each group needs, each row once, and the numbers find it."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from compss_train.data.partitioning import cut_into_pieces


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.lists(st.lists(st.integers(0, 10**6), max_size=20), min_size=1, max_size=5),
)
def test_pieces_hold_each_groups_samples_once_and_the_numbers_find_them(chunk_sizes, drawn):
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
