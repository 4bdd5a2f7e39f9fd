"""Partial shuffles: orders in which samples move by about the size of a pool, so that files can be read in turn.

With one pool, each stretch of as many samples as it holds is permuted. With two, samples are drawn at random from
the first, where the next one of a permuted stretch takes each one's place, so that they travel further.

Source: the samplers of microsoft/PartiallyShuffleDistributedSampler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
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
    """Iterate over a partial shuffle of the numbers 0 to ``samples``, about ``pool`` of them at a time.

    A pure function of its arguments that needs memory for the pools only.

    Parameters
    ----------
    samples:
        How many numbers there are, at least 1.
    pool:
        Numbers in a pool, at least 1.
    pools:
        1 or 2.
    seed, epoch:
        Of the random order.
    start:
        How many numbers at the beginning to leave out: the order after an interruption.

    Raises ``ValueError`` for other numbers.
    """
    check_count("samples", samples)
    check_count("start", start, least=0)
    check_pools(pool, pools)
    parts = _parts(samples, pool, pools, partial_shuffle_generator(seed, epoch), _as_counted)
    return _without_first(start, parts)


def check_pools(pool: int, pools: int) -> None:
    """Raise ``ValueError`` for numbers that make no pools."""
    check_count("shuffle_buffer", pool)
    if pools not in (1, 2):
        raise ValueError(f"pools={pools!r}: choose 1 or 2")


def slot_order(samples: int, pool: int, pools: int, random: np.random.Generator | None) -> Iterator[Numbers]:
    """Iterate over the same order by the slots that samples lie in, of ``pool * pools``.

    Samples 0, 1, 2... begin in slots 0, 1, 2..., and each later one, in turn, takes the slot that became free
    first: whoever puts the next sample where one was just taken out does right. Without ``random`` the order stays
    as it is, for which there is one pool.
    """
    left: deque[Numbers] = deque()

    def slots_of(first: int, number: int) -> Numbers:
        return _as_counted(first, number) if first < pool * pools else left.popleft()[:number]

    for part in _parts(samples, pool, pools, random, slots_of):
        left.append(part)
        yield part


def _as_counted(first: int, number: int) -> Numbers:
    return np.arange(first, first + number)


def _parts(
    samples: int, pool: int, pools: int, random: np.random.Generator | None, named: Callable[[int, int], Numbers]
) -> Iterator[Numbers]:
    """Iterate over the order; ``named(first, number)`` says what the samples of a stretch are called."""
    row_ranges = _stretches(samples, pool, random, named)
    return row_ranges if pools == 1 or random is None else _through_pool(row_ranges, random)


def _stretches(
    samples: int, pool: int, random: np.random.Generator | None, named: Callable[[int, int], Numbers]
) -> Iterator[Numbers]:
    for first in range(0, samples, pool):
        number = min(pool, samples - first)
        names = named(first, number)
        yield names if random is None else names[random.permutation(number)]


def _through_pool(row_ranges: Iterator[Numbers], random: np.random.Generator) -> Iterator[Numbers]:
    pool = next(row_ranges)
    for row_range in row_ranges:
        yield exchange(pool, row_range, random.integers(len(pool), size=len(row_range)))
    yield random.permutation(pool)


def exchange(pool: Numbers, arriving: Numbers, places: NDArray[Any]) -> Numbers:
    """Take the number at each of the places in turn, putting the next arriving one there; return those taken.

    Changes ``pool``. What is at a place named for the first time was in the pool; later, it is what arrived when
    the place was named before: all places at once instead of one by one.
    """
    order = np.argsort(places, kind="stable")
    place = places[order]
    is_first = np.append(True, place[1:] != place[:-1])
    arrived = arriving[order]
    taken = np.empty_like(arriving)
    taken[order] = np.where(is_first, pool[place], np.roll(arrived, 1))
    is_last = np.append(is_first[1:], True)
    pool[place[is_last]] = arrived[is_last]
    return taken


def _without_first(number: int, parts: Iterator[Numbers]) -> Iterator[Numbers]:
    for part in parts:
        rest = part[number:]
        number -= len(part) - len(rest)
        if len(rest):
            yield rest


@dataclass(frozen=True)
class Pools:
    """How a partial shuffle mixes: samples in a pool, and 1 or 2 pools."""

    size: int
    number: int = 1

    def __post_init__(self) -> None:
        check_pools(self.size, self.number)
        object.__setattr__(self, "size", int(self.size))  # numpy's integers do not go into JSON
        object.__setattr__(self, "number", int(self.number))

    @property
    def capacity(self) -> int:
        """Samples in all pools."""
        return self.size * self.number


class SlotPlan:
    """The slots of all samples in the order of a partial shuffle, from sample ``start`` of that order on.

    Whoever follows it begins with what ``held`` says in the slots, takes samples out where ``next`` says, and
    before that puts others in where ``following`` says.
    """

    def __init__(self, samples: int, pools: Pools, random: np.random.Generator | None, start: int = 0) -> None:
        self._samples = samples
        self._order = slot_order(samples, pools.size, pools.number, random)
        self._part: Numbers = np.empty(0, np.int64)
        self._drawn = self._part
        self.held: Numbers = np.arange(min(pools.capacity, samples))
        """The sample in each slot at the start, -1 for none."""
        self.arrived = len(self.held)
        """How many samples have come in, drawn since or not."""
        self._replay(start)

    def next(self, number: int) -> Numbers:
        """Return the slots of the next samples in order, up to so many of them."""
        if not len(self._part):
            self._part = next(self._order)
        self._drawn, self._part = self._part[:number], self._part[number:]
        return self._drawn

    def following(self) -> tuple[Numbers, Numbers]:
        """Return the samples that come in next, and their slots: those drawn from last."""
        first, self.arrived = self.arrived, min(self.arrived + len(self._drawn), self._samples)
        slots, self._drawn = self._drawn[: self.arrived - first], self._drawn[:0]
        return np.arange(first, self.arrived), slots

    def _replay(self, start: int) -> None:
        while start:
            slots = self.next(start)
            start -= len(slots)
            self.held[slots] = -1
            samples, places = self.following()
            self.held[places] = samples

    def held_in_turn(self) -> tuple[Numbers, Numbers]:
        """Return the samples that are held, in the order in which they came, and their slots."""
        slots = np.flatnonzero(self.held >= 0)
        slots = slots[np.argsort(self.held[slots])]
        return self.held[slots], slots
