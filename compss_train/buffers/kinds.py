"""The kinds of buffers of single samples: ``FIFO``, and those that draw at random from a
``SlotPartition``.
"""

from collections import deque
from typing import Any

import numpy as np

from compss_train._utils.validation import check_count
from compss_train.buffers.base import Buffer
from compss_train.buffers.samples import NO_SLOTS, SampleBatch, Slots


class FIFO(Buffer):
    """Returns each sample once, in the order of the puts; a put waits while ``capacity`` samples
    are held.
    """

    def __init__(self, capacity: int, *, seed: int | None = None, pin_memory: bool = False) -> None:
        super().__init__(capacity, seed=seed, pin_memory=pin_memory)
        self._queue: deque[int] = deque()

    def _held_slots(self) -> Slots:
        return np.array(self._queue, np.intp)

    def _count(self) -> int:
        return len(self._queue)

    def _available(self) -> int:
        return len(self._queue)

    def _add(self, slots: Slots, incoming: SampleBatch, start: int) -> None:
        self._queue.extend(slots.tolist())

    def _draw(self, size: int) -> tuple[Slots, Slots]:
        slots = np.array([self._queue.popleft() for _ in range(size)], np.intp)
        return slots, slots

    def _restore(self, slots: Slots, state: dict[str, Any]) -> None:
        self._queue = deque(slots.tolist())


class PartitionedBuffer(Buffer):
    """A buffer that keeps unseen samples apart from those returned before, in a
    ``SlotPartition``.
    """

    def __init__(
        self, capacity: int, threshold: int, *, seed: int | None = None, pin_memory: bool = False
    ) -> None:
        super().__init__(capacity, threshold=threshold, seed=seed, pin_memory=pin_memory)
        self._samples = SlotPartition(capacity)

    def _held_slots(self) -> Slots:
        return self._samples.all()

    def _count(self) -> int:
        return self._samples.held

    def _count_unseen(self) -> int:
        return self._samples.unseen

    def _add(self, slots: Slots, incoming: SampleBatch, start: int) -> None:
        self._samples.add(slots)

    def _extra_state(self) -> dict[str, Any]:
        return {"unseen": self._samples.unseen}

    def _restore(self, slots: Slots, state: dict[str, Any]) -> None:
        self._samples = SlotPartition(self.capacity)
        self._samples.add(slots)
        self._samples.unseen = state["unseen"]


class FIRO(PartitionedBuffer):
    """Returns each sample once, drawn uniformly from those held; a put waits while ``capacity``
    samples are held.

    With ``passes`` above 1, for prototypes whose data fit into the buffer, gets wait until
    reception is over. Then every sample is returned that many times, in passes over all samples,
    each in a new random order. With 1 (default), each sample is returned once, while others arrive.
    """

    def __init__(
        self,
        capacity: int,
        threshold: int,
        *,
        passes: int = 1,
        seed: int | None = None,
        pin_memory: bool = False,
    ) -> None:
        super().__init__(capacity, threshold, seed=seed, pin_memory=pin_memory)
        self.passes = check_count("passes", passes)
        self._remaining_passes = passes

    def _count_unseen(self) -> int:
        return super()._count_unseen() if self._remaining_passes == self.passes else 0

    def _deadlock_reason(self) -> str | None:
        if self.passes == 1 or self._room():
            return None
        return (
            f"the buffer is full with {self.capacity} samples, and with several passes samples "
            "stay until all have been put; use a capacity for all samples, or passes=1"
        )

    def _available(self) -> int:
        if self.reception_over:
            return self._samples.unseen + (self._remaining_passes - 1) * self._samples.held
        return self._samples.held if self._allows_gets() and self.passes == 1 else 0

    def _draw(self, size: int) -> tuple[Slots, Slots]:
        drawn = []
        removed = NO_SLOTS
        while size:  # from what this pass has not returned yet, and then from the next pass
            number = min(size, self._samples.unseen)
            size -= number
            positions = choose_distinct(self._random, self._samples.unseen, number)
            if self._remaining_passes == 1:
                removed = self._samples.remove(positions)
                break
            drawn.append(self._samples.at(positions))
            self._samples.mark_seen(positions)
            if not self._samples.unseen:
                self._samples.unseen = self._samples.held
                self._remaining_passes -= 1
        return np.concatenate([*drawn, removed]) if drawn else removed, removed

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "passes": self.passes}

    def _extra_state(self) -> dict[str, Any]:
        return {**super()._extra_state(), "remaining_passes": self._remaining_passes}

    def _restore(self, slots: Slots, state: dict[str, Any]) -> None:
        super()._restore(slots, state)
        self._remaining_passes = state["remaining_passes"]


class Reservoir(PartitionedBuffer):
    """Returns samples drawn uniformly from those held, which stay in the reservoir.

    A put into a full reservoir evicts a random sample among those returned before, and waits while
    all are unseen. So every sample is returned at least once, unlike in classic reservoir sampling.
    A batch consists of independent draws, so it can contain a sample twice.

    With ``max_repeats``, gets wait rather than return more than that many times as many samples as
    were put, until reception is over, and a batch has no sample twice. ``waited`` has the seconds.
    Only batches of different sizes can exceed it: a reservoir that is full of unseen samples
    returns them, as nothing else makes room.
    """

    _repeats = True

    def __init__(
        self,
        capacity: int,
        threshold: int,
        *,
        max_repeats: int | None = None,
        seed: int | None = None,
        pin_memory: bool = False,
    ) -> None:
        super().__init__(capacity, threshold, seed=seed, pin_memory=pin_memory)
        if max_repeats is not None:
            self.max_repeats = check_count("max_repeats", max_repeats)
            self._repeats = False

    def _room(self) -> int:
        return self._store.num_free + self._samples.seen

    def _evict(self, number: int) -> None:
        seen = choose_distinct(
            self._random, self._samples.seen, number - self._store.num_free, ordered=False
        )
        self._store.remove(self._samples.remove(self._samples.unseen + seen))

    def _available(self) -> int:
        if self.reception_over:
            return self._samples.held
        held = self._samples.held
        if not held or not self._allows_gets():
            return 0
        return self._repeatable() if self._repeats else min(held, self._repeatable())

    def _draw(self, size: int) -> tuple[Slots, Slots]:
        if self.reception_over:
            slots = self._samples.remove(choose_distinct(self._random, self._samples.held, size))
            return slots, slots
        positions = (choose if self._repeats else choose_distinct)(
            self._random, self._samples.held, size
        )
        slots = self._samples.at(positions)
        self._samples.mark_seen(positions)
        return slots, NO_SLOTS


class BatchReservoir(Reservoir):
    """A reservoir from which each get returns ``batch_size`` different samples, stacked.

    When reception is over, the last batch may be smaller.
    """

    _repeats = False

    def __init__(
        self,
        capacity: int,
        threshold: int,
        batch_size: int,
        *,
        max_repeats: int | None = None,
        seed: int | None = None,
        pin_memory: bool = False,
    ) -> None:
        super().__init__(
            capacity, threshold, max_repeats=max_repeats, seed=seed, pin_memory=pin_memory
        )
        self.batch_size = check_count("batch_size", batch_size)
        if batch_size > capacity:
            raise ValueError(
                f"batch_size={batch_size}, capacity={capacity}: a batch needs that many "
                "different samples; use a larger capacity or smaller batches"
            )

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return a batch of ``batch_size`` samples; waits and raises as ``Buffer.get`` does."""
        return self.get_batch(self.batch_size, block, timeout)

    def get_batch(
        self, size: int | None = None, block: bool = True, timeout: float | None = None
    ) -> Any:
        """Return ``size`` different samples, ``batch_size`` by default."""
        return super().get_batch(self.batch_size if size is None else size, block, timeout)

    def is_ready(self) -> bool:
        """Return whether a batch is available without waiting."""
        with self._lock:
            return self._available() >= (1 if self.reception_over else self.batch_size)

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "batch_size": self.batch_size}


class SlotPartition:
    """The held slots in an array: unseen slots first (up to ``unseen``), then seen slots (up to
    ``held``).

    The order within both sections is arbitrary. Random choices (any held sample, an unseen one, one
    to evict) are choices of positions in this array. All operations take time proportional to the
    number of chosen samples.
    """

    def __init__(self, capacity: int) -> None:
        self._order: Slots = np.empty(capacity, np.intp)
        self._marks: Slots = np.empty(capacity, np.intp)
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
        if start < self.held:  # the seen slots at the start of the next section move to its end
            end = self.held + len(slots)
            number = min(stop, self.held) - start
            self._order[end - number : end] = self._order[start : start + number]
        self._order[start:stop] = slots
        self.unseen, self.held = stop, self.held + len(slots)

    def mark_seen(self, positions: Slots) -> None:
        """Mark the slots at these positions as seen; a position may occur more than once."""
        new = self._distinct(self._split(positions)[0])
        self._move_last(new, self.unseen)
        self.unseen -= len(new)

    def remove(self, positions: Slots) -> Slots:
        """Remove the slots at these positions, each given once; return them."""
        slots = self.at(positions)
        unseen, gone = self._split(positions)
        stop = self.unseen
        self._move_last(unseen, stop)
        self.unseen -= len(unseen)
        if stop < self.held:  # seen slots follow
            self._move_last(np.concatenate([np.arange(self.unseen, stop), gone]), self.held)
        self.held -= len(positions)
        return slots

    def _split(self, positions: Slots) -> tuple[Slots, Slots]:
        """Return which of these positions are those of unseen and of seen slots."""
        # A put or get of one sample takes none of the arrays of the general case.
        if len(positions) == 1:
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
