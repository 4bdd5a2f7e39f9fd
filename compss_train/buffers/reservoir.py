"""Reservoirs: a sample stays after it was got, until another one takes its slot."""

from typing import Any

from compss_train._utils.validation import check_count
from compss_train.buffers.base import UNLIMITED
from compss_train.buffers.partition import choose, choose_distinct
from compss_train.buffers.queues import PartitionedBuffer
from compss_train.buffers.samples import SampleBatch
from compss_train.buffers.storage import NO_SLOTS, Slots


class Reservoir(PartitionedBuffer):
    """Returns samples drawn uniformly from those held, which stay in the reservoir.

    A put into a full reservoir evicts a random sample among those that were got before, and waits while all are
    unseen. So every sample is got at least once, unlike in classic reservoir sampling. A batch consists of
    independent draws, so that it can contain a sample twice.
    """

    def __init__(self, capacity: int, threshold: int, *, seed: int | None = None, pin_memory: bool = False) -> None:
        super().__init__(capacity, threshold, seed=seed, pin_memory=pin_memory)

    def _room(self) -> int:
        return self._store.num_free + self._samples.seen

    def _reserve(self, incoming: SampleBatch, start: int, number: int) -> Slots:
        if (lacking := number - self._store.num_free) > 0:
            seen = choose_distinct(self._random, self._samples.seen, lacking, ordered=False)
            self._evict(self._remove(self._samples.unseen + seen))
        return self._store.allocate(number)

    def _max_batch_size(self) -> int:
        return UNLIMITED

    def _available(self) -> int:
        if self._all_received():
            return self._samples.held
        return UNLIMITED if self._samples.held and self._allows_gets() else 0

    def _draw(self, size: int) -> tuple[Slots, Slots]:
        if self._all_received():
            slots = self._remove(choose_distinct(self._random, self._samples.held, size))
            return slots, slots
        positions = self._choose(size)
        slots = self._samples.at(positions)
        self._samples.mark_seen(positions)
        return slots, NO_SLOTS

    def _choose(self, size: int) -> Slots:
        """Choose samples to get, which stay in the reservoir; return their positions."""
        return choose(self._random, self._samples.held, size)


class BatchReservoir(Reservoir):
    """A reservoir whose gets return ``batch_size`` different samples each, stacked.

    When reception is over, the last batch may be smaller.
    """

    def __init__(
        self,
        capacity: int,
        threshold: int,
        batch_size: int,
        *,
        seed: int | None = None,
        pin_memory: bool = False,
    ) -> None:
        super().__init__(capacity, threshold, seed=seed, pin_memory=pin_memory)
        self.batch_size = check_count("batch_size", batch_size)
        if batch_size > capacity:
            raise ValueError(
                f"batch_size={batch_size}, capacity={capacity}: a batch needs as many different samples to "
                "be held; use a larger capacity or smaller batches"
            )

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return a batch of ``batch_size`` samples; waits and raises as ``Buffer.get`` does."""
        return self.get_batch(self.batch_size, block, timeout)

    def get_batch(self, size: int | None = None, block: bool = True, timeout: float | None = None) -> Any:
        """Return ``size`` different samples, ``batch_size`` by default."""
        return super().get_batch(self.batch_size if size is None else size, block, timeout)

    def is_ready(self) -> bool:
        """Return whether a batch is available without waiting."""
        with self._lock:
            return self._available() >= (1 if self._all_received() else self.batch_size)

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "batch_size": self.batch_size}

    def _max_batch_size(self) -> int:
        return self.capacity

    def _available(self) -> int:
        return min(super()._available(), self._samples.held)

    def _choose(self, size: int) -> Slots:
        return choose_distinct(self._random, self._samples.held, size)
