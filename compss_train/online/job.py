"""What a worker of an online fit is to do, and what it saves from time to time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from compss_train.buffers import BufferSpec
from compss_train.online.connection import Address
from compss_train.online.receiver import Received
from compss_train.online.stream import needed_by
from compss_train.training.worker.batches import Batch
from compss_train.training.worker.server_exchange import ServerAddress
from compss_train.training.worker.train import WorkerState

Pairing = Callable[[Any, Any], Any]
"""Makes (x, y) of two batches of time steps, the earlier and the later of each pair."""


@dataclass(frozen=True)
class OnlineJob:
    """What is the same for all workers of an online fit."""

    director: Address
    key: str = field(repr=False)
    """What streams must know to be received."""
    host: str | None
    """Where workers listen for streams, ``None`` for where they reach the coordinator from."""
    served: ServerAddress
    """The global parameters."""
    num_workers: int
    buffer: BufferSpec
    batch_size: int
    merge_every: int
    """Batches between merges."""
    max_batches: int | None
    report_every: float
    """Seconds between reports."""
    save_every: float | None
    """Seconds between checkpoints, ``None`` for none."""
    pairing: Pairing | None
    new_optimizer: bool
    seed: int

    @property
    def paired(self) -> bool:
        """Whether batches are pairs of time steps."""
        return self.pairing is not None

    def needed_by(self, worker: int, stream: int, samples: int) -> int:
        """Return one more than the number of the last sample that a worker gets of a stream of so many."""
        return needed_by(worker, stream, samples, self.num_workers, whole=self.paired)

    def batch_of(self, drawn: Any, device: str) -> Batch:
        """Return x and y of what the buffer gave, on the device."""
        parts = drawn if self.pairing is None else self.pairing(*drawn)
        x, y = parts if isinstance(parts, tuple) and len(parts) == 2 else (parts, None)
        x = x[0] if isinstance(x, tuple) else x
        return Batch(x.to(device, non_blocking=True), None if y is None else y.to(device, non_blocking=True))


@dataclass(frozen=True)
class Saved:
    """A worker between two batches, right after a merge: what it needs to go on, besides the global parameters."""

    state: WorkerState
    buffer: dict[str, Any]
    received: Received
    batches: int
