"""``SlotPartition``: the held slots, those of unseen samples apart from those of seen ones; random choices."""

from __future__ import annotations

import numpy as np

from compss_train.buffers.storage import NO_SLOTS, Slots


def choose_distinct(random: np.random.Generator, population: int, number: int, *, ordered: bool = True) -> Slots:
    """Return different integers below ``population``; all sets of them are equally likely.

    All orders are, too, if they are ``ordered``.
    """
    if number == 1:  # in a quarter of the time
        return choose(random, population, 1)
    return random.choice(population, number, replace=False, shuffle=ordered)


def choose(random: np.random.Generator, population: int, number: int) -> Slots:
    """Return independent integers below ``population``."""
    # Takes half the time of bounded integers; the bias of at most 2**-53 is negligible.
    if number == 1:
        return np.array([int(random.random() * population)], np.intp)
    return (random.random(number) * population).astype(np.intp)


class SlotPartition:
    """The held slots in an array: unseen slots first (up to ``unseen``), then seen slots (up to ``held``).

    The order within both sections is arbitrary. Random choices (any held sample, an unseen one, one to evict) are
    choices of positions in this array. All operations take time proportional to the number of chosen samples.
    """

    def __init__(self, capacity: int) -> None:
        self._order: Slots = np.empty(capacity, np.intp)
        self._marks: Slots = np.empty(capacity, np.intp)
        self.unseen = 0
        self.held = 0

    @classmethod
    def of(cls, capacity: int, slots: Slots, unseen: int) -> SlotPartition:
        """Return a partition that holds these slots, the first ``unseen`` of them unseen."""
        partition = cls(capacity)
        partition._order[: len(slots)] = slots
        partition.unseen, partition.held = unseen, len(slots)
        return partition

    @property
    def seen(self) -> int:
        """Number of held samples that were got before."""
        return self.held - self.unseen

    def at(self, positions: Slots) -> Slots:
        """Return the slots at these positions."""
        slots: Slots = self._order[positions]
        return slots

    def all(self) -> Slots:
        """Return all held slots, the unseen ones first."""
        return self._order[: self.held].copy()

    def add(self, slots: Slots) -> None:
        """Add these slots as unseen."""
        start, stop = self.unseen, self.unseen + len(slots)
        if start < self.held:  # the first seen slots, which follow, become the last
            end, number = self.held + len(slots), min(stop, self.held) - start
            self._order[end - number : end] = self._order[start : start + number]
        self._order[start:stop] = slots
        self.unseen, self.held = stop, self.held + len(slots)

    def mark_seen(self, positions: Slots) -> None:
        """Mark the slots at these positions as seen; a position may occur more than once."""
        new, _ = self._split(positions)
        if len(new):
            new = self._distinct(new)
            self._move_last(new, self.unseen)
            self.unseen -= len(new)

    def mark_all_unseen(self) -> None:
        """Mark all slots as unseen."""
        self.unseen = self.held

    def remove(self, positions: Slots) -> None:
        """Remove the slots at these positions, each given once."""
        unseen, gone = self._split(positions)
        stop = self.unseen
        if len(unseen):
            self._move_last(unseen, stop)
            self.unseen -= len(unseen)
        if stop < self.held:  # seen slots follow
            if len(unseen):
                gone = np.concatenate([np.arange(self.unseen, stop), gone])
            self._move_last(gone, self.held)
        self.held -= len(positions)

    # A single position, that of a put or get of one sample, takes none of the arrays of the general case.

    def _split(self, positions: Slots) -> tuple[Slots, Slots]:
        """Return which of these positions are those of unseen and of seen slots."""
        if len(positions) == 1:
            return (positions, NO_SLOTS) if positions[0] < self.unseen else (NO_SLOTS, positions)
        is_unseen = positions < self.unseen
        return positions[is_unseen], positions[~is_unseen]

    def _distinct(self, positions: Slots) -> Slots:
        """Return each of these positions once; cheaper than sorting them."""
        if len(positions) == 1:
            return positions
        numbers = np.arange(len(positions))
        self._marks[positions] = numbers
        distinct: Slots = positions[self._marks[positions] == numbers]
        return distinct

    def _move_last(self, positions: Slots, stop: int) -> None:
        """Swap slots so that those at these positions come last before ``stop``."""
        start = stop - len(positions)
        if len(positions) == 1:
            hole = positions[0]
            self._order[hole], self._order[start] = self._order[start], self._order[hole]
            return
        is_hole = positions < start
        moves_out = np.ones(len(positions), bool)
        moves_out[positions[~is_hole] - start] = False
        holes, tail = positions[is_hole], start + moves_out.nonzero()[0]
        self._order[holes], self._order[tail] = self._order[tail], self._order[holes]
