"""Partial shuffles: orders in which samples move by about the size of a pool.

Files can therefore be read sequentially. With one pool, each run of consecutive samples that fills
the pool is permuted. With two pools, samples are drawn at random from the first pool and replaced
by those of the next permuted run, so they move further.

Source: the samplers of microsoft/PartiallyShuffleDistributedSampler.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compss_train._utils.validation import check_choice, check_count

Numbers = NDArray[np.int64]


class Pools(NamedTuple):
    """The memory of a partial shuffle: 1 or 2 pools of ``size`` samples each."""

    size: int
    number: int = 1

    @property
    def capacity(self) -> int:
        """Number of samples in all pools."""
        return self.size * self.number


@dataclass(frozen=True)
class PartialShuffle:
    """Reads blocks or files in turn, and mixes their samples in pools: ``fit(shuffle=...)``.

    In every epoch the blocks are reordered and split into equal shares, one for each worker. See
    ``PartialShuffleSampler`` for the pools, which are emptied at the end of an epoch and before
    workers merge.

    Parameters
    ----------
    pool_size:
        Pool size in samples; ``None`` (default) for the size of the largest block.
    pools:
        Number of pools, 1 (default) or 2.

    Raises ``ValueError`` for other numbers.
    """

    pool_size: int | None = None
    pools: int = 1

    def __post_init__(self) -> None:
        check_count("pool_size", 1 if self.pool_size is None else self.pool_size)
        check_choice("pools", self.pools, (1, 2))

    def of_blocks(self, sizes: Sequence[int]) -> Pools:
        """Return the pools of a shuffle of blocks of these sizes."""
        return Pools(int(max(sizes) if self.pool_size is None else self.pool_size), int(self.pools))


class SlotPlan:
    """The slots of all samples in the order of a partial shuffle, from sample ``start`` on.

    There are as many slots as samples in the pools. Samples 0, 1, 2, ... start in slots 0, 1, 2,
    ... Each later sample takes the slot that was freed first, so that it can be written to a slot
    that was just drawn.

    To follow the plan, fill the slots as in ``held``. Then alternate between drawing the samples in
    the slots of ``draw`` and writing new samples to the slots of ``refill``. Without ``random``,
    one pool keeps the order.
    """

    def __init__(
        self, samples: int, pools: Pools, random: np.random.Generator | None, start: int = 0
    ) -> None:
        self._samples = samples
        self._pools = pools
        self._random = random
        self._runs = self._slots_in_order()
        self._run: Numbers = np.empty(0, np.int64)
        """What is left of the run that is drawn."""
        self._drawn: Numbers = np.empty(0, np.int64)
        """The slots of the last draw, until they are refilled."""
        self.held: Numbers = np.arange(min(pools.capacity, samples))
        """The sample in each slot at the start, -1 for an empty slot."""
        self.arrived = len(self.held)
        """Number of samples that have been written to slots, including those drawn since."""
        while start:
            drawn = self.draw(start)
            start -= len(drawn)
            self.held[drawn] = -1
            arriving, slots = self.refill()
            self.held[slots] = arriving

    def draw(self, number: int) -> Numbers:
        """Return the slots of the next samples in order, at most ``number`` slots."""
        if not len(self._run):
            self._run = next(self._runs)
        self._drawn = self._run[:number]
        self._run = self._run[number:]
        return self._drawn

    def refill(self) -> tuple[Numbers, Numbers]:
        """Return the next samples to write, and their slots, which are those of the last draw."""
        first = self.arrived
        self.arrived = min(self.arrived + len(self._drawn), self._samples)
        slots = self._drawn[: self.arrived - first]
        self._drawn = self._drawn[:0]
        return np.arange(first, self.arrived), slots

    def held_by_arrival(self) -> tuple[Numbers, Numbers]:
        """Return the samples held at the start, in the order of their arrival, and their slots."""
        slots = np.flatnonzero(self.held >= 0)
        slots = slots[np.argsort(self.held[slots])]
        return self.held[slots], slots

    def _slots_in_order(self) -> Iterator[Numbers]:
        """Iterate over the slots of all samples in the order of the shuffle, in runs."""
        size = self._pools.size
        random = self._random
        freed: deque[Numbers] = deque()
        pool: Numbers | None = None  # what the runs are exchanged with, if there are two pools
        for first in range(0, self._samples, size):
            number = min(size, self._samples - first)
            is_empty = first < self._pools.capacity
            run = np.arange(first, first + number) if is_empty else freed.popleft()[:number]
            if random is not None:
                run = run[random.permutation(number)]
                if self._pools.number == 2 and pool is None:
                    pool = run
                    continue
                if pool is not None:
                    run = exchange(pool, run, random.integers(len(pool), size=number))
            freed.append(run)
            yield run
        if random is not None and pool is not None:
            yield random.permutation(pool)


def exchange(pool: Numbers, arriving: Numbers, indices: Numbers) -> Numbers:
    """Replace the pool's numbers at ``indices`` by the arriving ones; return those replaced.

    Changes ``pool``. If an index occurs again, the number that arrived there before is returned.
    All indices are handled at once instead of one by one.
    """
    order = np.argsort(indices, kind="stable")
    index = indices[order]
    is_first = np.append(True, index[1:] != index[:-1])
    arrived = arriving[order]
    taken = np.empty_like(arriving)
    taken[order] = np.where(is_first, pool[index], np.roll(arrived, 1))
    is_last = np.append(is_first[1:], True)
    pool[index[is_last]] = arrived[is_last]
    return taken
