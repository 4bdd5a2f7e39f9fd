"""``SlotPartition``: the held slots of a buffer, unseen ones first; random choices among them."""

import numpy as np

from compss_train.buffers.storage import NO_SLOTS, Slots


class SlotPartition:
    """The held slots in an array: first ``unseen`` unseen slots, then seen ones up to ``held``.

    The order within both sections is arbitrary. Random choices (any held sample, an unseen one, one
    to evict) are choices of positions in this array. All operations take time proportional to the
    number of chosen samples.
    """

    def __init__(self, capacity: int) -> None:
        self._order: Slots = np.empty(capacity, np.intp)
        """The slots."""
        self._marks: Slots = np.empty(capacity, np.intp)
        """Memory of ``_distinct``."""
        self.unseen = 0
        self.held = 0

    @property
    def seen(self) -> int:
        """Number of held samples that were returned before."""
        return self.held - self.unseen

    def at(self, positions: Slots) -> Slots:
        """Return the slots at these positions."""
        return self._order.take(positions)

    def all(self) -> Slots:
        """Return all held slots, the unseen ones first."""
        return self._order[: self.held].copy()

    def add(self, slots: Slots) -> None:
        """Add these slots as unseen."""
        start = self.unseen
        stop = self.unseen + len(slots)
        end = self.held + len(slots)
        if start < self.held:  # the seen slots at the start of the next section move to its end
            number = min(stop, self.held) - start
            self._order[end - number : end] = self._order[start : start + number]
        self._order[start:stop] = slots
        self.unseen = stop
        self.held = end

    def mark_seen(self, positions: Slots) -> None:
        """Mark the slots at these positions as seen; a position may occur more than once."""
        unseen, _ = self._split(positions)
        new = self._distinct(unseen)
        self._move_last(new, self.unseen)
        self.unseen -= len(new)

    def remove(self, positions: Slots) -> Slots:
        """Remove the slots at these positions, each given once; return them."""
        slots = self.at(positions)
        unseen, seen = self._split(positions)
        stop = self.unseen
        self._move_last(unseen, stop)
        self.unseen -= len(unseen)
        if stop < self.held:  # seen slots follow
            removed = np.concatenate([np.arange(self.unseen, stop), seen])
            self._move_last(removed, self.held)
        self.held -= len(positions)
        return slots

    def _split(self, positions: Slots) -> tuple[Slots, Slots]:
        """Return those of these positions that hold unseen slots, and those that hold seen ones."""
        if len(positions) == 1:  # the arrays of the general case would take longer
            return (positions, NO_SLOTS) if positions[0] < self.unseen else (NO_SLOTS, positions)
        is_unseen = positions < self.unseen
        return positions[is_unseen], positions[~is_unseen]

    def _distinct(self, positions: Slots) -> Slots:
        """Return each of these positions once; cheaper than sorting them."""
        if len(positions) < 2:
            return positions
        numbers = np.arange(len(positions))
        self._marks[positions] = numbers
        distinct: Slots = positions[self._marks[positions] == numbers]
        return distinct

    def _move_last(self, positions: Slots, stop: int) -> None:
        """Swap slots so that those at these positions come last before ``stop``."""
        if len(positions) == 1:
            hole = positions[0]
            last = stop - 1
            self._order[hole], self._order[last] = self._order[last], self._order[hole]
            return
        if not len(positions):
            return
        start = stop - len(positions)
        is_hole = positions < start
        moves_out = np.ones(len(positions), bool)
        moves_out[positions[~is_hole] - start] = False
        holes = positions[is_hole]
        tail = start + moves_out.nonzero()[0]
        self._order[holes], self._order[tail] = self._order[tail], self._order[holes]


def choose_distinct(
    random: np.random.Generator, population: int, number: int, *, ordered: bool = True
) -> Slots:
    """Return distinct integers below ``population``; all sets of them are equally likely.

    With ``ordered``, so are all orders.
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
