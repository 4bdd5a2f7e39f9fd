"""Sources: the samples of parts of a pass are those of the pass, and copies."""

from itertools import pairwise

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from compss_train.data.block_passes import BlockPass
from compss_train.worker.source import source_of
from compss_train.worker.work import Work
from tests.worker.assignments import job_of


def source(rows, *, shuffled):
    """Return the source of one block, whose samples are their numbers, and that block."""
    block = np.arange(rows, dtype=np.float32)[:, None]
    job = job_of(rows, row_seed=3 if shuffled else None, seed=3)
    return source_of(job, Work(blocks=(7,)), [block]), block


def cut(opened, bounds):
    """Return the samples of the next pass, cut at these places."""
    samples = next(opened)
    return [column for start, stop in bounds for (column,) in [samples.cut(start, stop)]]


@given(st.data(), st.integers(1, 30), st.booleans())
def test_samples_of_parts_are_those_of_the_pass(data, rows, shuffled):
    inner = data.draw(st.sets(st.integers(1, rows - 1))) if rows > 1 else ()
    places = [0, *sorted(inner), rows]
    whole = BlockPass(7, 2, rows)
    parts = tuple(whole.part(start, stop) for start, stop in pairwise(places))
    block_source, _ = source(rows, shuffled=shuffled)
    with block_source.open((whole,)) as opened:
        (expected,) = cut(opened, [(0, rows)])
    with block_source.open(parts) as opened:
        samples = [batch for part in parts for batch in cut(opened, [(0, part.size)])]
    assert torch.equal(torch.cat(samples), expected)
    assert sorted(expected[:, 0].tolist()) == list(range(rows))
    assert shuffled or torch.equal(expected[:, 0], torch.arange(rows))


@given(st.integers(2, 30), st.booleans())
def test_what_a_network_does_to_a_batch_changes_no_block(rows, shuffled):
    block_source, block = source(rows, shuffled=shuffled)
    before = block.copy()
    with block_source.open((BlockPass(7, 0, rows),)) as opened:
        for batch in cut(opened, [(0, rows // 2), (rows // 2, rows)]):
            batch.zero_()
    assert np.array_equal(block, before)


def test_a_pass_of_listed_samples_has_exactly_these_in_their_order():
    blocks = [np.arange(4, dtype=np.float32)[:, None], np.arange(4, 10, dtype=np.float32)[:, None]]
    work = Work(blocks=(0, 1), starts=(0, 4))
    numbers = np.array([9, 0, 5, 3])
    with source_of(job_of(4), work, blocks).open((BlockPass(0, 0, 4, numbers),)) as opened:
        (samples,) = cut(opened, [(0, 4)])
    assert samples[:, 0].tolist() == numbers.tolist()
