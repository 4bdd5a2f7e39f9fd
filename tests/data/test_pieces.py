"""Laws of cutting blocks into pieces: nothing is lost, and every sample is found where the new number says."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from compss_train.data.partitioning import RoundPlan, renumber_samples, split_by_block, unique_samples

SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=6).map(tuple)


@given(SIZES, st.integers(1, 4), st.integers(0, 5), st.integers(0, 2))
def test_pieces_hold_each_workers_samples_and_visits_find_them(sizes, workers, seed, merge_every):
    starts = np.cumsum([0, *sizes[:-1]])
    values = [np.arange(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    schedule = RoundPlan(sizes, workers, 3, seed, "total", merge_every)
    for share in (share for round_ in schedule.rounds() for share in round_.assignments if share):
        samples = unique_samples(share)
        rows = split_by_block(samples, starts)
        pieces = np.concatenate([block[part] for block, part in zip(values, rows, strict=True)])
        np.testing.assert_array_equal(pieces, samples)
        for before, after in zip(share, renumber_samples(share, samples), strict=True):
            np.testing.assert_array_equal(pieces[after.samples], before.samples)
            assert (after.block, after.epoch, after.size) == (before.block, before.epoch, before.size)
