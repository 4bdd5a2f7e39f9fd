"""Partial shuffles: orders in which samples move by about the size of a pool, so that files are read sequentially.

With one pool, each run of consecutive samples that fills it is permuted. With two pools, samples are drawn at
random from the first pool and replaced by the samples of the next permuted run, so that they move further.

Source: the samplers of microsoft/PartiallyShuffleDistributedSampler.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compss_train._utils.validation import check_count
from compss_train.data.order import partial_shuffle_generator

Numbers = NDArray[np.int64]


def partial_order(
    samples: int, pool: int, *, pools: int = 1, seed: int = 0, epoch: int = 0, start: int = 0
) -> Iterator[Numbers]:
    """Iterate over a partial shuffle of the numbers below ``samples``, in arrays of about ``pool`` numbers.

    A pure function of its arguments; it needs memory for the pools only.

    Parameters
    ----------
    samples:
        How many numbers to shuffle, at least 1.
    pool:
        Size of a pool, at least 1.
    pools:
        Number of pools, 1 or 2.
    seed, epoch:
        Determine the random order.
    start:
        Number of values to skip at the beginning, to resume after an interruption.

    Raises ``ValueError`` for arguments out of range.
    """
    check_count("samples", samples)
    check_count("start", start, least=0)
    check_pools(pool, pools)
    parts = _shuffled_runs(samples, pool, pools, partial_shuffle_generator(seed, epoch), _consecutive)
    return _skip(start, parts)


def check_pools(pool: int, pools: int) -> None:
    """Raise ``ValueError`` unless the size of the pools is at least 1 and their number 1 or 2."""
    check_count("shuffle_buffer", pool)
    if pools not in (1, 2):
        raise ValueError(f"pools={pools!r}: choose 1 or 2")


def slot_order(samples: int, pool: int, pools: int, random: np.random.Generator | None) -> Iterator[Numbers]:
    """Iterate over a partial shuffle as numbers of slots that hold the samples; there are ``pool * pools`` slots.

    Samples 0, 1, 2... start in slots 0, 1, 2... Each later sample takes the slot that was freed first, so that the
    next sample can always be written to the slot that was just drawn. Without ``random`` the order is kept, which
    needs one pool.
    """
    drawn: deque[Numbers] = deque()

    def slots_of(first: int, number: int) -> Numbers:
        return _consecutive(first, number) if first < pool * pools else drawn.popleft()[:number]

    for part in _shuffled_runs(samples, pool, pools, random, slots_of):
        drawn.append(part)
        yield part


def _consecutive(first: int, number: int) -> Numbers:
    return np.arange(first, first + number)


def _shuffled_runs(
    samples: int, pool: int, pools: int, random: np.random.Generator | None, label: Callable[[int, int], Numbers]
) -> Iterator[Numbers]:
    """Iterate over a partial shuffle; ``label(first, number)`` returns the numbers that denote a run's samples."""
    runs = _permuted_runs(samples, pool, random, label)
    return runs if pools == 1 or random is None else _exchange_with_pool(runs, random)


def _permuted_runs(
    samples: int, pool: int, random: np.random.Generator | None, label: Callable[[int, int], Numbers]
) -> Iterator[Numbers]:
    for first in range(0, samples, pool):
        number = min(pool, samples - first)
        run = label(first, number)
        yield run if random is None else run[random.permutation(number)]


def _exchange_with_pool(runs: Iterator[Numbers], random: np.random.Generator) -> Iterator[Numbers]:
    pool = next(runs)
    for run in runs:
        yield exchange(pool, run, random.integers(len(pool), size=len(run)))
    yield random.permutation(pool)


def exchange(pool: Numbers, arriving: Numbers, indices: NDArray[Any]) -> Numbers:
    """Replace the pool's numbers at ``indices``, in turn, by the arriving ones; return those replaced.

    Changes ``pool``. An index that occurs again returns the number that arrived there before. This is vectorised:
    all indices at once instead of one by one.
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


def _skip(number: int, parts: Iterator[Numbers]) -> Iterator[Numbers]:
    for part in parts:
        rest = part[number:]
        number -= len(part) - len(rest)
        if len(rest):
            yield rest


@dataclass(frozen=True)
class Pools:
    """The shuffle buffer of a partial shuffle: 1 or 2 pools of ``size`` samples each."""

    size: int
    number: int = 1

    def __post_init__(self) -> None:
        check_pools(self.size, self.number)
        object.__setattr__(self, "size", int(self.size))  # numpy's integers cannot be encoded as JSON
        object.__setattr__(self, "number", int(self.number))

    @property
    def capacity(self) -> int:
        """Number of samples in all pools."""
        return self.size * self.number


@dataclass(frozen=True)
class PartialShuffle:
    """Equal shares of blocks in a new order, whose samples are mixed in pools while they are read in sequence.

    ``fit(shuffle=PartialShuffle(...))``; see ``PartialShuffleSampler`` for what pools do. They are emptied at the
    end of an epoch and before workers merge.

    Parameters
    ----------
    pool_size:
        Samples in a pool; ``None`` (default) for the size of the largest block.
    pools:
        Number of pools, 1 (default) or 2.

    Raises ``ValueError`` for other numbers.
    """

    pool_size: int | None = None
    pools: int = 1

    def __post_init__(self) -> None:
        if self.pool_size is not None:
            check_count("pool_size", self.pool_size)
        check_pools(self.pool_size or 1, self.pools)

    def of_blocks(self, sizes: Sequence[int]) -> Pools:
        """Return the pools of a shuffle of blocks of these sizes."""
        return Pools(max(sizes) if self.pool_size is None else self.pool_size, self.pools)


class SlotPlan:
    """The slots of all samples in the order of a partial shuffle, from sample ``start`` of that order on.

    To follow the plan, fill the slots as in ``held``. Then alternate: draw the samples in the slots of ``draw``,
    and write new samples to the slots of ``refill``.
    """

    def __init__(self, samples: int, pools: Pools, random: np.random.Generator | None, start: int = 0) -> None:
        self._samples = samples
        self._order = slot_order(samples, pools.size, pools.number, random)
        self._part: Numbers = np.empty(0, np.int64)
        self._drawn = self._part
        self.held: Numbers = np.arange(min(pools.capacity, samples))
        """The sample in each slot at the start, -1 for an empty slot."""
        self.arrived = len(self.held)
        """Number of samples that have been written to slots, including those drawn since."""
        self._replay(start)

    def draw(self, number: int) -> Numbers:
        """Return the slots of the next samples in order, at most ``number`` of them."""
        if not len(self._part):
            self._part = next(self._order)
        self._drawn, self._part = self._part[:number], self._part[number:]
        return self._drawn

    def refill(self) -> tuple[Numbers, Numbers]:
        """Return the next samples to write, and their slots: those of the last draw."""
        first, self.arrived = self.arrived, min(self.arrived + len(self._drawn), self._samples)
        slots, self._drawn = self._drawn[: self.arrived - first], self._drawn[:0]
        return np.arange(first, self.arrived), slots

    def _replay(self, start: int) -> None:
        while start:
            drawn = self.draw(start)
            start -= len(drawn)
            self.held[drawn] = -1
            samples, slots = self.refill()
            self.held[slots] = samples

    def held_by_arrival(self) -> tuple[Numbers, Numbers]:
        """Return the samples in the slots at the start, in the order of their arrival, and their slots."""
        slots = np.flatnonzero(self.held >= 0)
        slots = slots[np.argsort(self.held[slots])]
        return self.held[slots], slots
