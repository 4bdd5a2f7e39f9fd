"""The kinds of buffers of single samples: ``FIFO``, and those that draw at random."""

from collections import deque
from typing import Any

import numpy as np

from compss_train._utils.validation import check_count
from compss_train.buffers.base import Buffer
from compss_train.buffers.samples import SampleBatch
from compss_train.buffers.slot_partition import SlotPartition, choose, choose_distinct
from compss_train.buffers.storage import NO_SLOTS, Slots


class FIFO(Buffer):
    """Returns each sample once, in the order of the puts.

    A put waits while ``capacity`` samples are held.
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
    """A buffer with a ``SlotPartition``, which keeps unseen samples apart from the others."""

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
    """Returns each sample once, drawn uniformly from those held.

    A put waits while ``capacity`` samples are held. With ``passes`` above 1, for prototypes whose
    data fit into the buffer, gets wait until reception is over. Then every sample is returned that
    many times, in passes over all samples, each in a new random order. With 1 (default), each
    sample is returned once, while others arrive.
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
        slots = np.concatenate([*drawn, removed]) if drawn else removed
        return slots, removed

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
        missing = number - self._store.num_free
        seen = choose_distinct(self._random, self._samples.seen, missing, ordered=False)
        self._store.remove(self._samples.remove(self._samples.unseen + seen))

    def _available(self) -> int:
        if self.reception_over:
            return self._samples.held
        held = self._samples.held
        if not held or not self._allows_gets():
            return 0
        return self._repeatable() if self._repeats else min(held, self._repeatable())

    def _draw(self, size: int) -> tuple[Slots, Slots]:
        held = self._samples.held
        if self.reception_over:
            slots = self._samples.remove(choose_distinct(self._random, held, size))
            return slots, slots
        if self._repeats:
            positions = choose(self._random, held, size)
        else:
            positions = choose_distinct(self._random, held, size)
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
        if size is None:
            size = self.batch_size
        return super().get_batch(size, block, timeout)

    def is_ready(self) -> bool:
        """Return whether a batch is available without waiting."""
        with self._lock:
            return self._available() >= (1 if self.reception_over else self.batch_size)

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "batch_size": self.batch_size}
