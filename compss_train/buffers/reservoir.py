"""The reservoirs: samples stay after they were got, until others need their room."""

from __future__ import annotations

from typing import Any

import numpy as np

from compss_train._utils.validation import check_count
from compss_train.buffers.base import UNLIMITED
from compss_train.buffers.incoming import Incoming
from compss_train.buffers.partition import PartitionedBuffer
from compss_train.buffers.storage import NO_SLOTS, Slots


class Reservoir(PartitionedBuffer):
    """Gives samples drawn uniformly from those held, which stay.

    A put into a full reservoir evicts a random sample among those that were got before, and waits while there is
    none: every sample is got at least once, unlike in the classic reservoir sampling. A batch consists of
    independent draws, so that a sample may be in it twice.
    """

    def __init__(self, capacity: int, threshold: int, *, seed: int | None = None, pin_memory: bool = False) -> None:
        super().__init__(capacity, threshold, seed=seed, pin_memory=pin_memory)

    def _room(self) -> int:
        return self._store.free + self._samples.seen

    def _reserve(self, incoming: Incoming, start: int, number: int) -> Slots:
        if (lacking := number - self._store.free) > 0:
            seen = self._random.choice(self._samples.seen, lacking, replace=False, shuffle=False)
            self._evict(self._remove(self._samples.unseen + seen))
        return self._store.take(number)

    def _largest(self) -> int:
        return UNLIMITED

    def _available(self) -> int:
        if self._settled():
            return self._samples.held
        return UNLIMITED if self._samples.held > self.threshold else 0

    def _draw(self, size: int) -> tuple[Slots, Slots]:
        if self._settled():
            slots = self._remove(self._random.choice(self._samples.held, size, replace=False))
            return slots, slots
        places = self._choose(size)
        slots = self._samples.at(places)
        self._samples.see(places)
        return slots, NO_SLOTS

    def _choose(self, size: int) -> Slots:
        """Return places of samples that stay."""
        # Half the time of bounded integers; of 2**53 equal parts, which sample gets one more makes no difference.
        return (self._random.random(size) * self._samples.held).astype(np.intp)


class BatchReservoir(Reservoir):
    """A reservoir whose every get gives ``batch_size`` different samples at once, stacked.

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
                f"batch_size={batch_size}, capacity={capacity}: a batch is of different samples, so that as many "
                "must be held; take a larger capacity or smaller batches"
            )

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return a batch of ``batch_size`` samples, waiting until it can be had; raises as other buffers' get."""
        return self.get_batch(self.batch_size, block, timeout)

    def get_batch(self, size: int | None = None, block: bool = True, timeout: float | None = None) -> Any:
        """Return ``size`` different samples, by default ``batch_size``."""
        return super().get_batch(self.batch_size if size is None else size, block, timeout)

    def is_ready(self) -> bool:
        """Tell whether a batch could be got at once."""
        with self._lock:
            return self._available() >= (1 if self._settled() else self.batch_size)

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "batch_size": self.batch_size}

    def _largest(self) -> int:
        return self.capacity

    def _available(self) -> int:
        return min(super()._available(), self._samples.held)

    def _choose(self, size: int) -> Slots:
        return self._random.choice(self._samples.held, size, replace=False)
