"""``BufferSpec``: the description of a buffer, from which every worker makes its own."""

from __future__ import annotations

from dataclasses import dataclass

from compss_train.buffers.base import Buffer
from compss_train.buffers.make import BufferType, make_buffer
from compss_train.validation import check_count


@dataclass(frozen=True)
class BufferSpec:
    """A buffer that ``DistributedTrainer.fit`` gives each worker.

    Parameters
    ----------
    type:
        A ``BufferType`` or its name in any case: FIFO, FIRO, Reservoir or BatchReservoir.
    size:
        The most samples that it holds.
    threshold:
        More samples than this must be held before the first batch; half the size by default. FIFO has none.

    Raises ``ValueError`` for an unknown type, a size below 1, and a threshold that is not below the size.
    """

    type: BufferType | str
    size: int
    threshold: int | None = None

    def __post_init__(self) -> None:
        check_count("size", self.size)
        if self.kind is BufferType.SimPairedReservoir:
            raise ValueError(
                "a SimPairedReservoir pairs time steps of simulations, which blocks do not name; take another"
            )
        if self.kind is BufferType.FIFO and self.threshold is not None:
            raise ValueError(f"threshold={self.threshold}: a FIFO has none, leave it out")
        if not 0 <= self.needed < self.size:
            raise ValueError(
                f"threshold={self.threshold}: give an integer from 0 to {self.size - 1}, below the size"
            )

    @property
    def kind(self) -> BufferType:
        """The type."""
        return BufferType.of(self.type)

    @property
    def needed(self) -> int:
        """The threshold, given or by default."""
        if self.kind is BufferType.FIFO:
            return 0
        return self.size // 2 if self.threshold is None else check_count("threshold", self.threshold, least=0)

    @property
    def gives_each_once(self) -> bool:
        """Whether every sample is got exactly once."""
        return self.kind in (BufferType.FIFO, BufferType.FIRO)

    def check(self, batch_size: int) -> None:
        """Raise ``ValueError`` where batches of this size can never be had."""
        room = self.size - self.needed if self.kind is BufferType.FIRO else self.size
        if batch_size > room:
            raise ValueError(
                f"a batch of {batch_size} samples cannot come from a {self.kind.name} of size {self.size} with "
                f"threshold {self.needed}: give a larger size, a lower threshold or smaller batches"
            )

    def limited(self, samples: int, batch_size: int) -> BufferSpec:
        """Return the description of a buffer no larger than so many samples, in all, can fill."""
        threshold = None if self.kind is BufferType.FIFO else self.needed
        return BufferSpec(self.type, min(self.size, max(samples, self.needed + batch_size)), threshold)

    def make(self, batch_size: int, seed: int, pin_memory: bool = False) -> Buffer:
        """Return such a buffer, empty."""
        return make_buffer(
            self.size,
            self.kind,
            per_server_watermark=self.needed,
            batch_size=batch_size,
            seed=seed,
            pin_memory=pin_memory,
        )
