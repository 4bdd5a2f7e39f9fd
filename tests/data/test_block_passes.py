"""Batches have equal sizes; passes that were cut into parts are joined again."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from compss_train.data.block_passes import Batching, BlockPass, cut_assignment, join_parts


def check_bounds(bounds, rows):
    assert bounds[0][0] == 0
    assert bounds[-1][1] == rows
    assert all(stop == start for (_, stop), (start, _) in pairwise(bounds))
    sizes = [stop - start for start, stop in bounds]
    assert max(sizes) - min(sizes) <= 1
    return sizes


@given(rows=st.integers(1, 500), size=st.integers(1, 600))
def test_a_batch_size_is_the_most_and_batches_are_few(rows, size):
    sizes = check_bounds(Batching(size=size).bounds(rows), rows)
    assert max(sizes) <= size
    assert len(sizes) == -(-rows // size)


BLOCK_SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=6).map(tuple)


@given(BLOCK_SIZES, st.booleans(), st.lists(st.integers(0, 54), max_size=8))
def test_what_was_cut_can_be_joined(sizes, named, cuts):
    """Whether passes name their samples or not."""
    passes = tuple(
        BlockPass(block, 0, size, sample_numbers=np.arange(size) + 7 * block if named else None)
        for block, size in enumerate(sizes)
    )
    bounds = sorted({0, sum(sizes), *(cut for cut in cuts if cut < sum(sizes))})
    parts = [cut_assignment(passes, start, stop) for start, stop in pairwise(bounds)]
    assert [sum(part.size for part in cut) for cut in parts] == np.diff(bounds).tolist()
    assert all(part.whole == sizes[part.block] for cut in parts for part in cut)
    joined = join_parts(part for cut in parts for part in cut)
    assert [(part.block, part.size, part.skip, part.remaining) for part in joined] == [
        (block, size, 0, 0) for block, size in enumerate(sizes)
    ]
    for ours, theirs in zip(joined, passes, strict=True):
        np.testing.assert_array_equal(ours.sample_numbers, theirs.sample_numbers)
