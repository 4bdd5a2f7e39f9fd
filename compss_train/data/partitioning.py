"""The schedule: which worker visits which samples in which round, a pure function of sizes, seed and epoch.

A *visit* is one pass over one block's worth of samples. Visits are dealt to workers round-robin within an epoch, or
in a partial shuffle as shares of consecutive blocks, with parts of blocks at their ends. A *round* is what lies
between two merges: n epochs, n blocks a worker inside an epoch (in a partial shuffle: as many samples as n blocks
have on average), or everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from compss_train.data.order import block_order, sample_order
from compss_train.data.row_ranges import deal_files

Shuffle = Literal["blocks", "total", "partial"] | None
MergeUnit = Literal["epochs", "blocks"]


@dataclass(frozen=True, slots=True, eq=False)
class BlockPass:
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


WorkerAssignment: TypeAlias = tuple[BlockPass, ...]


@dataclass(frozen=True, slots=True)
class Position:
    """Where a fit is between two rounds, so that it can go on from there with any number of workers."""

    epoch: int
    """Epochs that are complete, those of earlier fits included."""
    units: int = 0
    """What has been trained of the next one: blocks, or shares in a partial shuffle."""
    cut_for: int = 0
    """The number of workers that an epoch that has been begun was cut for."""


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """What every worker trains between two merges."""

    number: int
    epoch: int
    """Epochs begun when the round ends, the last one's number counted from 1."""
    shares: tuple[WorkerAssignment, ...]
    """One share a worker; empty for a worker without samples."""
    reached: Position
    """Where the next round begins."""

    @property
    def counts(self) -> tuple[int, ...]:
        """Samples of each worker."""
        return tuple(sum(block_pass.size for block_pass in share) for share in self.shares)


_Part: TypeAlias = tuple[int, tuple[WorkerAssignment, ...], Position]
"""An epoch, its last one where there are several, what each worker trains, and where that leads."""


@dataclass(frozen=True)
class Schedule:
    """All rounds of a fit. ``first_epoch`` and ``first_round`` continue an earlier fit's counting.

    With a ``start``, ``first_round`` is the number of the round that begins there.
    """

    sizes: tuple[int, ...]
    num_workers: int
    num_epochs: int
    seed: int
    shuffle: Shuffle = "blocks"
    merge_every: int = 1
    merge_unit: MergeUnit = "epochs"
    first_epoch: int = 0
    first_round: int = 0
    start: Position | None = None

    def rounds(self) -> Iterator[Round]:
        """Iterate over the rounds, computing each epoch's order when it is reached."""
        inside = self.merge_unit == "blocks" and self.merge_every
        parts = self._parts_of_epochs() if inside else self._whole_epochs()
        for number, (epoch, shares, reached) in enumerate(parts, self.first_round):
            yield Round(number, epoch + 1, shares, reached)

    @property
    def samples(self) -> int:
        """Samples to train on, once for each epoch."""
        start = self._start
        begun = self._units(start.epoch, start.cut_for)[: start.units] if start.units and self._epochs else []
        done = sum(block_pass.size for unit in begun for block_pass in unit)
        return sum(self.sizes) * len(self._epochs) - done

    @property
    def _start(self) -> Position:
        return self.start or Position(self.first_epoch)

    @property
    def _epochs(self) -> range:
        return range(self._start.epoch, self.first_epoch + self.num_epochs)

    def _whole_epochs(self) -> Iterator[_Part]:
        for together in _groups(self._epochs, self.merge_every or self.num_epochs):
            shares = _join_shares([self._epoch_shares(epoch) for epoch in together])
            yield together[-1], shares, Position(together.stop)

    def _parts_of_epochs(self) -> Iterator[_Part]:
        for epoch in self._epochs:
            begun = self._start if epoch == self._start.epoch else Position(epoch)
            cut_for = begun.cut_for or self.num_workers
            units = self._units(epoch, cut_for)
            size = self.num_workers * (1 if self.shuffle == "partial" else self.merge_every)
            for first in range(begun.units, len(units), size):
                part = units[first : first + size]
                ends = first + size >= len(units)
                reached = Position(epoch + 1) if ends else Position(epoch, first + size, cut_for)
                yield epoch, self._dealt(part), reached

    def _units(self, epoch: int, workers: int) -> list[WorkerAssignment]:
        """Return what an epoch's rounds are made of, in the order in which it is dealt to workers in turn.

        These are visits, or in a partial shuffle equal shares of the epoch, one for each worker and round.
        """
        if self.shuffle != "partial":
            return [(block_pass,) for block_pass in self._visits(epoch)]
        rounds = -(-len(self.sizes) // (workers * self.merge_every))
        shares = self._stretches(epoch, rounds * workers)
        return [share for part in range(rounds) for share in shares[part::rounds]]

    def _dealt(self, units: list[WorkerAssignment]) -> tuple[WorkerAssignment, ...]:
        dealt = (units[worker :: self.num_workers] for worker in range(self.num_workers))
        return tuple(tuple(chain.from_iterable(share)) for share in dealt)

    def _epoch_shares(self, epoch: int) -> list[WorkerAssignment]:
        if self.shuffle == "partial":
            return self._stretches(epoch, self.num_workers)
        return list(self._dealt([(block_pass,) for block_pass in self._visits(epoch)]))

    def _stretches(self, epoch: int, shares: int) -> list[WorkerAssignment]:
        """Return equal shares of the epoch's samples, each file by file."""
        dealt = deal_files(self.sizes, shares, self.seed, epoch)
        return [tuple(BlockPass(s.file, epoch, len(s), first=s.start) for s in share) for share in dealt]

    def _visits(self, epoch: int) -> list[BlockPass]:
        if self.shuffle == "total":
            return self._shuffled_visits(epoch)
        blocks: list[int] | range = range(len(self.sizes))
        if self.shuffle == "blocks":
            blocks = block_order(self.seed, epoch, len(self.sizes))
        return [BlockPass(block, epoch, self.sizes[block]) for block in blocks]

    def _shuffled_visits(self, epoch: int) -> list[BlockPass]:
        order = sample_order(self.seed, epoch, sum(self.sizes))
        bounds = pairwise(np.cumsum([0, *self.sizes]).tolist())
        return [
            BlockPass(block, epoch, stop - start, order[start:stop]) for block, (start, stop) in enumerate(bounds)
        ]


def _groups(epochs: range, size: int) -> Iterator[range]:
    for start in range(epochs.start, epochs.stop, size):
        yield range(start, min(start + size, epochs.stop))


def _join_shares(epochs: list[list[WorkerAssignment]]) -> tuple[WorkerAssignment, ...]:
    return tuple(tuple(chain.from_iterable(shares)) for shares in zip(*epochs, strict=True))


def needed_samples(share: WorkerAssignment) -> NDArray[Any]:
    """Return the numbers of the samples that the visits name, each once and in ascending order."""
    return np.unique(np.concatenate([block_pass.samples for block_pass in share if block_pass.samples is not None]))


def rows_by_block(samples: NDArray[Any], starts: Sequence[int]) -> list[NDArray[Any]]:
    """Return each block's rows among ascending sample numbers; blocks begin at ``starts``."""
    cuts = [*np.searchsorted(samples, starts).tolist(), len(samples)]
    return [samples[low:high] - start for start, (low, high) in zip(starts, pairwise(cuts), strict=True)]


def renumbered(share: WorkerAssignment, samples: NDArray[Any]) -> WorkerAssignment:
    """Return the visits with samples numbered by their places among these ascending numbers."""
    return tuple(
        replace(block_pass, samples=np.searchsorted(samples, block_pass.samples))
        if block_pass.samples is not None
        else block_pass
        for block_pass in share
    )
