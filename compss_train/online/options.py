"""The options of an online fit, checked before any task starts, and the job description that workers get."""

from dataclasses import dataclass, field
from typing import Any

from compss_train._utils.validation import check_count, check_seconds
from compss_train.buffers import BufferSpec
from compss_train.engines.nodes import is_loopback
from compss_train.net.connection import Address
from compss_train.net.sockets import PRIVATE
from compss_train.online.simulations import Pairing
from compss_train.online.stream import worker_of
from compss_train.training.merge import Merge, MergeLike
from compss_train.worker.batches import Batch
from compss_train.worker.server_exchange import ServerAddress


@dataclass(frozen=True, kw_only=True)
class OnlineOptions:
    """Options of ``DistributedTrainer.fit_online`` that its workers need; its docstring explains each."""

    buffer: BufferSpec
    batch_size: int
    merge: Merge
    """Filled."""
    max_batches: int | None = None
    record_every: float = 1.0
    checkpoint_every: float | None = 60.0
    pairing: Pairing | None = None
    """That of the simulations."""

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        if self.max_batches is not None:
            check_count("max_batches", self.max_batches)
        check_seconds("record_every", self.record_every)
        if self.checkpoint_every is not None:
            check_seconds("checkpoint_every", self.checkpoint_every)
        if not isinstance(self.buffer, BufferSpec):
            raise TypeError(f"buffer={self.buffer!r}: give a BufferSpec, such as BufferSpec('Reservoir', 4096)")
        if self.buffer.pairs != (self.pairing is not None):
            raise ValueError(
                f"pairing={self.pairing!r} with a {self.buffer.kind}: a SimPairedReservoir requires pairing=, "
                "a function of two batches of time steps that returns (x, y); other buffers do not accept it"
            )
        self.buffer.check(self.batch_size)


def online_merge(merge: MergeLike) -> Merge:
    """Return the merge of an online fit, with all its options; raise ``ValueError`` for what it does not have."""
    given = Merge.of(merge)
    if given.kind not in (None, "parameter_server") or given.unit not in (None, "batches"):
        raise ValueError(
            f"merge={given!r}: fit_online merges through a parameter server, every few batches: give "
            "Merge(every=...), whose kind is 'parameter_server' and whose unit is 'batches'"
        )
    if callable(given.every):
        raise ValueError(f"merge={given!r}: fit_online has no epochs that every= could depend on; give a number")
    if given.optimizer_state not in (None, "keep", "reset"):
        raise ValueError(
            f"optimizer_state={given.optimizer_state!r}: choose 'keep', which continues with the workers' "
            "optimizers of the last fit, or 'reset'"
        )
    return given.filled(ONLINE)


ONLINE = Merge("parameter_server", every=1, unit="batches", optimizer_state="keep", rule="weighted")
"""The defaults of ``fit_online`` for options that a ``Merge`` leaves open."""


@dataclass(frozen=True, kw_only=True)
class OnlineJob:
    """What all workers of an online fit share."""

    coordinator: Address
    key: str = field(repr=False)
    """The token that the workers' receivers require of streams."""
    host: str | None
    """The host of the address for senders, or ``None``."""
    server_address: ServerAddress
    """The global parameters."""
    num_workers: int
    options: OnlineOptions
    seed: int

    @property
    def paired(self) -> bool:
        """Whether batches are pairs of time steps."""
        return self.options.pairing is not None

    def listening_address(self, local_host: str) -> str | None:
        """Return the address at which a worker listens for streams, or ``None`` for a socket file.

        ``local_host`` is this machine's address as the coordinator's machine sees it. Senders on other machines can
        reach that, unless it is the loopback interface: such a worker listens where the coordinator does.
        """
        if self.host is None or is_loopback(self.host) or not is_loopback(local_host):
            inside = self.host is None and self.coordinator.url.startswith(PRIVATE)
            return None if inside else f"tcp://{local_host}:*"
        return f"tcp://{self.host}:*"

    def end_offset(self, worker: int, stream: int, samples: int) -> int:
        """Return the offset of a worker that holds all its samples of a stream of ``samples``; 0 if none."""
        for sample in range(samples - 1, max(-1, samples - 1 - self.num_workers), -1):
            if worker_of(stream, sample, self.num_workers, whole=self.paired) == worker:
                return sample + 1
        return 0

    def make_batch(self, drawn: Any) -> Batch:
        """Return x and y of a batch that the buffer gave."""
        parts = drawn if self.options.pairing is None else self.options.pairing(*drawn)
        x, y = parts if isinstance(parts, tuple) and len(parts) == 2 else (parts, None)
        x = x[0] if isinstance(x, tuple) else x
        return Batch(x, y)
