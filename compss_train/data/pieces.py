"""Pieces of blocks: which rows each group of workers needs in a total shuffle, computed for all groups at once.

Where a task would read whole blocks to get at some rows, other tasks cut the blocks first: each takes a chunk, some
consecutive blocks, and returns a piece for each group of workers that needs some of its rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Pieces:
    """The pieces of one chunk."""

    rows: NDArray[Any]
    """Numbers of the samples within the chunk, piece by piece, ascending in each."""
    bounds: NDArray[Any]
    """Where each piece begins in ``rows``, and the end of the last one."""
    groups: list[int]
    """The group that needs each piece, in ascending order."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Cut:
    """All pieces, and the numbers of the samples in them."""

    chunks: list[Pieces]
    numbers: list[NDArray[Any]]
    """For each group, its samples as numbers among the rows of its pieces, chunk after chunk."""

    @property
    def rows(self) -> int:
        """Number of rows of all pieces."""
        return sum(len(pieces.rows) for pieces in self.chunks)


def cut_into_pieces(samples: Sequence[NDArray[Any]], chunk_starts: Sequence[int]) -> Cut:
    """Return the pieces for groups that train on these samples, from chunks that begin at these samples."""
    flat = np.concatenate([*samples, np.empty(0, np.int64)])
    lengths = [len(each) for each in samples]
    owners = np.repeat(np.arange(len(samples)), lengths)
    order = np.lexsort((flat, owners))
    is_new = _differs(flat[order], owners[order])
    firsts = order[is_new]  # of each sample in a group, as it may pass over it several times
    kept, groups = flat[firsts], owners[firsts]
    numbers = np.empty(len(flat), np.int64)
    numbers[order] = np.cumsum(is_new) - 1
    numbers -= np.searchsorted(groups, owners)
    return Cut(
        chunks=_chunks(kept, groups, np.asarray(chunk_starts)),
        numbers=np.split(numbers, np.cumsum(lengths)[:-1]),
    )


def _chunks(samples: NDArray[Any], groups: NDArray[Any], starts: NDArray[Any]) -> list[Pieces]:
    """Return the pieces of each chunk, given ascending samples of one group after the other."""
    chunk = np.searchsorted(starts, samples, side="right") - 1
    order = np.argsort(chunk, kind="stable")
    rows, groups, chunk = samples[order] - starts[chunk[order]], groups[order], chunk[order]
    begins = np.flatnonzero(_differs(chunk, groups))
    edges = np.searchsorted(chunk, np.arange(len(starts) + 1))
    cuts = np.searchsorted(begins, edges)
    return [
        Pieces(
            rows=rows[edges[number] : edges[number + 1]],
            bounds=np.append(begins[cuts[number] : cuts[number + 1]], edges[number + 1]) - edges[number],
            groups=groups[begins[cuts[number] : cuts[number + 1]]].tolist(),
        )
        for number in range(len(starts))
    ]


def _differs(*keys: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where a new run of equal keys begins."""
    begins = np.ones(len(keys[0]), bool)
    begins[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    return begins
