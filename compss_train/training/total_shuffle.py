"""Total shuffles: tasks cut blocks into pieces, one for each group that needs some of the rows.

A group is the workers of one task. Without pieces, every task would receive nearly all blocks, for
a few rows of each.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compss_train.data.block_passes import WorkerAssignment
from compss_train.data.order import even_parts
from compss_train.engines.base import Ref
from compss_train.engines.nodes import Resources
from compss_train.training.published_data import PublishedData
from compss_train.worker.source import split_rows

LEAST_CHUNKS = 16
"""Minimum number of tasks that cut blocks: each holds at most a sixteenth of the data in memory."""

MOST_PIECES = 64
"""Maximum average number of pieces that a worker receives; ``LEAST_CHUNKS`` takes precedence."""


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """What a task cuts from a chunk: a piece for each group that needs some of its rows.

    A chunk is some consecutive blocks.
    """

    rows: NDArray[Any]
    """Numbers of the samples within the chunk, piece by piece, ascending in each."""
    bounds: NDArray[Any]
    """The start of each piece in ``rows``, then the end of the last one."""
    groups: list[int]
    """The group that needs each piece, in ascending order."""


@dataclass(frozen=True, eq=False)
class ChunkSamples:
    """The samples of a group of workers in a round."""

    values: list[Ref]
    """The blocks that hold them, or pieces of blocks with all columns."""
    assignments: Sequence[WorkerAssignment]
    """One for each worker."""
    blocks: tuple[int, ...] = ()
    """The numbers of the blocks; empty for pieces."""
    starts: tuple[int, ...] = ()
    """Number of the first sample of each block or piece; empty unless passes list samples."""


def cut_blocks(
    data: PublishedData, shares: Sequence[Sequence[WorkerAssignment]]
) -> list[ChunkSamples]:
    """Submit tasks that cut blocks into pieces; return the pieces of each group.

    ``shares`` are the assignments of the workers of each group. Nothing is cut, and nothing
    returned, if the groups need more than half of all samples, as in a round of several epochs:
    pieces would be many copies of the data.
    """
    samples = [samples_of(share) for share in shares]
    workers = sum(map(len, shares))
    chunks = _chunks(data, most=max(LEAST_CHUNKS, MOST_PIECES * workers // len(shares)))
    chunk_starts = [data.starts[chunk.start] for chunk in chunks]
    pieces_of_chunks, numbers_of_groups = cut_into_pieces(samples, chunk_starts)
    rows = sum(len(pieces.rows) for pieces in pieces_of_chunks)
    groups_with_samples = sum(len(numbers) > 0 for numbers in samples)
    if 2 * rows > groups_with_samples * data.source.number_samples:
        return []
    refs: list[list[Ref]] = [[] for _ in shares]
    sizes: list[list[int]] = [[] for _ in shares]
    for chunk, pieces in zip(chunks, pieces_of_chunks, strict=True):
        piece_refs = _split(data, chunk, pieces)
        piece_sizes = np.diff(pieces.bounds).tolist()
        for group, ref, size in zip(pieces.groups, piece_refs, piece_sizes, strict=True):
            refs[group].append(ref)
            sizes[group].append(size)
    return [
        ChunkSamples(
            refs[group],
            _renumbered(share, numbers_of_groups[group]),
            starts=tuple(accumulate(sizes[group][:-1], initial=0)) if sizes[group] else (),
        )
        for group, share in enumerate(shares)
    ]


def _chunks(data: PublishedData, most: int) -> list[range]:
    """Return the blocks of each task that cuts some; there are ``most`` tasks at most."""
    blocks = len(data.starts)
    slots = data.engine.slots(Resources())
    number = min(blocks, max(LEAST_CHUNKS, 2 * slots), most)
    return [range(start, stop) for start, stop in even_parts(blocks, number)]


def _split(data: PublishedData, chunk: range, pieces: Pieces) -> list[Ref]:
    if not pieces.groups:
        return []
    chunk_start = data.starts[chunk.start]
    number = len(pieces.groups)
    starts = [data.starts[block] - chunk_start for block in chunk]
    refs = data.engine.submit(
        split_rows, data.values(chunk), starts, pieces.rows, pieces.bounds, returns=number
    )
    return list(refs) if number > 1 else [refs]


def samples_of(assignments: Iterable[WorkerAssignment]) -> NDArray[Any]:
    """Return the numbers of the samples that a total shuffle gives to workers, in their order."""
    passes = chain.from_iterable(assignments)
    listed = (block_pass.sample_numbers for block_pass in passes)
    numbers = [samples for samples in listed if samples is not None]
    if len(numbers) == 1:
        return numbers[0]
    return np.concatenate(numbers) if numbers else np.empty(0, np.int64)


def _renumbered(
    assignments: Sequence[WorkerAssignment], numbers: NDArray[Any]
) -> list[WorkerAssignment]:
    """Return the assignments of workers with other numbers of their samples."""
    renumbered = []
    start = 0
    for assignment in assignments:
        passes = []
        for block_pass in assignment:
            stop = start + block_pass.size
            passes.append(replace(block_pass, sample_numbers=numbers[start:stop]))
            start = stop
        renumbered.append(tuple(passes))
    return renumbered


def cut_into_pieces(
    samples: Sequence[NDArray[Any]], chunk_starts: Sequence[int]
) -> tuple[list[Pieces], list[NDArray[Any]]]:
    """Return the pieces of each chunk for groups with these samples, and their new numbers.

    Chunks begin at the samples ``chunk_starts``. The new numbers, for each group, are the positions
    of its samples among the rows of its pieces, chunk after chunk.
    """
    all_samples = np.concatenate([*samples, np.empty(0, np.int64)])
    lengths = [len(numbers) for numbers in samples]
    limit = int(all_samples.max(initial=0)) + 1
    owners = np.repeat(np.arange(len(samples)), lengths)
    # Each sample once a group, although a group may pass over it several times; group after group.
    distinct, numbers = np.unique(owners * limit + all_samples, return_inverse=True)
    groups, distinct_samples = np.divmod(distinct, limit)
    numbers = numbers.reshape(-1) - np.searchsorted(groups, owners)
    starts = np.asarray(chunk_starts)
    chunks = np.searchsorted(starts, distinct_samples, side="right") - 1
    order = np.argsort(chunks, kind="stable")
    chunks = chunks[order]
    groups = groups[order]
    rows = distinct_samples[order] - starts[chunks]
    pieces = []
    for start, stop in pairwise(np.searchsorted(chunks, np.arange(len(starts) + 1))):
        piece_starts = start + np.flatnonzero(np.diff(groups[start:stop], prepend=-1))
        bounds = np.append(piece_starts, stop) - start
        pieces.append(Pieces(rows[start:stop], bounds, groups[piece_starts].tolist()))
    return pieces, np.split(numbers, np.cumsum(lengths)[:-1])
