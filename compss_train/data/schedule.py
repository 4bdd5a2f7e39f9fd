"""The schedule: which worker visits which samples in which round, a pure function of sizes, seed and epoch.

A *visit* is one pass over one block's worth of samples. Visits are dealt to workers round-robin within an epoch, or
in a partial shuffle as shares of consecutive blocks, with parts of blocks at their ends. A *round* is what lies
between two merges: n epochs, n blocks a worker inside an epoch (in a partial shuffle: as many samples as n blocks
have on average), or everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from compss_train.data.order import block_order, sample_order
from compss_train.data.stretches import deal_files

Shuffle = Literal["blocks", "total", "partial"] | None
MergeUnit = Literal["epochs", "blocks"]


@dataclass(frozen=True, slots=True, eq=False)
class Visit:
    """One pass over one block's worth of samples, or over a part of it."""

    block: int
    """Number of the block, or of the place in the grid where a total shuffle puts these samples."""
    epoch: int
    size: int
    """Samples in this visit."""
    samples: NDArray[Any] | None = None
    """Numbers of the samples among all blocks' samples; ``None`` for the block's own rows."""
    first: int = 0
    """The block's row that the visit begins with."""


Share = tuple[Visit, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """What every worker trains between two merges."""

    number: int
    epoch: int
    """Epochs begun when the round ends, the last one's number counted from 1."""
    shares: tuple[Share, ...]
    """One share a worker; empty for a worker without samples."""

    @property
    def counts(self) -> tuple[int, ...]:
        """Samples of each worker."""
        return tuple(sum(visit.size for visit in share) for share in self.shares)


@dataclass(frozen=True)
class Schedule:
    """All rounds of a fit. ``first_epoch`` and ``first_round`` continue an earlier fit's counting."""

    sizes: tuple[int, ...]
    num_workers: int
    num_epochs: int
    seed: int
    shuffle: Shuffle = "blocks"
    merge_every: int = 1
    merge_unit: MergeUnit = "epochs"
    first_epoch: int = 0
    first_round: int = 0

    def rounds(self) -> Iterator[Round]:
        """Iterate over the rounds, computing each epoch's order when it is reached."""
        for number, (epoch, shares) in enumerate(self._shares(), self.first_round):
            yield Round(number, epoch + 1, shares)

    def _shares(self) -> Iterator[tuple[int, tuple[Share, ...]]]:
        epochs = range(self.first_epoch, self.first_epoch + self.num_epochs)
        if self.merge_unit == "blocks" and self.merge_every:
            for epoch in epochs:
                for shares in self._parts_of_epoch(epoch):
                    yield epoch, shares
        else:
            for together in _groups(epochs, self.merge_every or self.num_epochs):
                yield together[-1], _join_shares([self._epoch_shares(epoch) for epoch in together])

    def _parts_of_epoch(self, epoch: int) -> Iterator[tuple[Share, ...]]:
        if self.shuffle != "partial":
            return _cut_shares(self._epoch_shares(epoch), self.merge_every)
        rounds = -(-len(self.sizes) // (self.num_workers * self.merge_every))
        shares = self._stretches(epoch, rounds * self.num_workers)
        return (tuple(shares[part::rounds]) for part in range(rounds))

    def _epoch_shares(self, epoch: int) -> list[Share]:
        if self.shuffle == "partial":
            return self._stretches(epoch, self.num_workers)
        visits = self._visits(epoch)
        return [tuple(visits[worker :: self.num_workers]) for worker in range(self.num_workers)]

    def _stretches(self, epoch: int, shares: int) -> list[Share]:
        """Return equal shares of the epoch's samples, each file by file."""
        dealt = deal_files(self.sizes, shares, self.seed, epoch)
        return [tuple(Visit(s.file, epoch, len(s), first=s.start) for s in share) for share in dealt]

    def _visits(self, epoch: int) -> list[Visit]:
        if self.shuffle == "total":
            return self._shuffled_visits(epoch)
        blocks: list[int] | range = range(len(self.sizes))
        if self.shuffle == "blocks":
            blocks = block_order(self.seed, epoch, len(self.sizes))
        return [Visit(block, epoch, self.sizes[block]) for block in blocks]

    def _shuffled_visits(self, epoch: int) -> list[Visit]:
        order = sample_order(self.seed, epoch, sum(self.sizes))
        bounds = pairwise(np.cumsum([0, *self.sizes]).tolist())
        return [Visit(block, epoch, stop - start, order[start:stop]) for block, (start, stop) in enumerate(bounds)]


def _groups(epochs: range, size: int) -> Iterator[range]:
    for start in range(epochs.start, epochs.stop, size):
        yield range(start, min(start + size, epochs.stop))


def _join_shares(epochs: list[list[Share]]) -> tuple[Share, ...]:
    return tuple(tuple(chain.from_iterable(shares)) for shares in zip(*epochs, strict=True))


def _cut_shares(shares: list[Share], size: int) -> Iterator[tuple[Share, ...]]:
    """Cut each worker's share into runs of ``size`` visits; a worker that has none left gets an empty one."""
    longest = max(map(len, shares))
    for start in range(0, longest, size):
        yield tuple(share[start : start + size] for share in shares)
