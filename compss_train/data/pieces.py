"""Pieces of blocks: which rows each group of workers needs in a total shuffle, computed for all groups at once.

Where a task would read whole blocks to get at some rows, other tasks cut the blocks first: each takes a chunk, some
consecutive blocks, and returns a piece for each group of workers that needs some of its rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Pieces:
    """The pieces of one chunk."""

    rows: NDArray[Any]
    """Numbers of the samples within the chunk, piece by piece, ascending in each."""
    bounds: NDArray[Any]
    """The start of each piece in ``rows``, then the end of the last one."""
    groups: list[int]
    """The group that needs each piece, in ascending order."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Cut:
    """All pieces, and the numbers of the samples in them."""

    chunks: list[Pieces]
    numbers: list[NDArray[Any]]
    """For each group, the positions of its samples among the rows of its pieces, chunk after chunk."""

    @property
    def rows(self) -> int:
        """Number of rows of all pieces."""
        return sum(len(pieces.rows) for pieces in self.chunks)


def cut_into_pieces(samples: Sequence[NDArray[Any]], chunk_starts: Sequence[int]) -> Cut:
    """Return the pieces for groups that train on these samples, from chunks that begin at these samples."""
    flat = np.concatenate([*samples, np.empty(0, np.int64)])
    lengths, limit = [len(each) for each in samples], int(flat.max(initial=0)) + 1
    owners = np.repeat(np.arange(len(samples)), lengths)
    # Each sample once a group, although a group may pass over it several times; group after group.
    distinct, numbers = np.unique(owners * limit + flat, return_inverse=True)
    groups, kept = np.divmod(distinct, limit)
    numbers = numbers.reshape(-1) - np.searchsorted(groups, owners)
    return Cut(
        chunks=_chunks(kept, groups, np.asarray(chunk_starts)),
        numbers=np.split(numbers, np.cumsum(lengths)[:-1]),
    )


def _chunks(samples: NDArray[Any], groups: NDArray[Any], starts: NDArray[Any]) -> list[Pieces]:
    """Return the pieces of each chunk, given ascending samples of one group after the other."""
    chunk = np.searchsorted(starts, samples, side="right") - 1
    order = np.argsort(chunk, kind="stable")
    rows, groups, chunk = samples[order] - starts[chunk[order]], groups[order], chunk[order]
    edges = np.searchsorted(chunk, np.arange(len(starts) + 1))
    pieces = []
    for first, stop in pairwise(edges):
        begins = first + np.flatnonzero(np.diff(groups[first:stop], prepend=-1))
        bounds = np.append(begins, stop) - first
        pieces.append(Pieces(rows=rows[first:stop], bounds=bounds, groups=groups[begins].tolist()))
    return pieces
