"""The plan of a partial shuffle: which slots samples are taken out of, and what is in them on the way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from compss_train.samplers.pools import Numbers, check_pools, slot_order


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
