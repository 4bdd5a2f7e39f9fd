"""Parts of passes over blocks, and the rows that they need."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from compss_train.data.block_passes import (
    BlockPass,
    cut_assignment,
    join_parts,
    renumber_samples,
    split_by_block,
    unique_samples,
)
from compss_train.data.partitioning import RoundPlan

BLOCK_SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=6).map(tuple)


@given(BLOCK_SIZES, st.integers(1, 4), st.integers(0, 5), st.integers(0, 2))
def test_gathered_rows_hold_each_workers_samples_and_renumbered_passes_find_them(sizes, workers, seed, merge_every):
    starts = np.cumsum([0, *sizes[:-1]])
    values = [np.arange(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    plan = RoundPlan(sizes, workers, 3, seed, shuffle="total", merge_every=merge_every)
    for assignment in (assignment for round_ in plan.rounds() for assignment in round_.assignments if assignment):
        samples = unique_samples(assignment)
        rows = split_by_block(samples, starts)
        gathered = np.concatenate([block[part] for block, part in zip(values, rows, strict=True)])
        np.testing.assert_array_equal(gathered, samples)
        for before, after in zip(assignment, renumber_samples(assignment, samples), strict=True):
            np.testing.assert_array_equal(gathered[after.samples], before.samples)
            assert (after.block, after.epoch, after.size) == (before.block, before.epoch, before.size)


@given(BLOCK_SIZES, st.booleans(), st.lists(st.integers(0, 54), max_size=8))
def test_what_was_cut_can_be_joined(sizes, named, cuts):
    """Whether passes name their samples or not."""
    passes = tuple(
        BlockPass(block, 0, size, samples=np.arange(size) + 7 * block if named else None)
        for block, size in enumerate(sizes)
    )
    bounds = sorted({0, sum(sizes), *(cut for cut in cuts if cut < sum(sizes))})
    parts = [cut_assignment(passes, start, stop) for start, stop in pairwise(bounds)]
    assert [sum(part.size for part in cut) for cut in parts] == np.diff(bounds).tolist()
    assert all(part.whole == sizes[part.block] for cut in parts for part in cut)
    joined = join_parts(part for cut in parts for part in cut)
    assert [(each.block, each.size, each.skip, each.rest) for each in joined] == [
        (block, size, 0, 0) for block, size in enumerate(sizes)
    ]
    for ours, theirs in zip(joined, passes, strict=True):
        np.testing.assert_array_equal(ours.samples, theirs.samples)
