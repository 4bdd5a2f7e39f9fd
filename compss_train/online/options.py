"""The options of an online fit, checked before any task starts, and the job description that workers get."""

from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass, field
from typing import Any, Literal

from compss_train._utils.validation import check_choice, check_count, check_seconds
from compss_train.buffers import BufferSpec
from compss_train.engines.nodes import is_loopback
from compss_train.model.optimizers import OptimizerSpec
from compss_train.net.connection import Address
from compss_train.net.sockets import PRIVATE
from compss_train.online.sender import host_and_port
from compss_train.online.stream import end_offset
from compss_train.training.build_arguments import check_outer_optimizer, check_picklable
from compss_train.worker.batches import Batch
from compss_train.worker.server_exchange import ServerAddress

Pairing = Callable[[Any, Any], Any]
"""Makes (x, y) of two batches of time steps, the earlier and the later of each pair."""


@dataclass(frozen=True, kw_only=True)
class OnlineOptions:
    """Options of ``DistributedTrainer.fit_online``, whose docstring explains each."""

    simulate: Callable[[Any], Iterable[Any]] | None
    inputs: Iterable[Any]
    buffer: BufferSpec
    batch_size: int
    num_simulators: int
    merge_every_batches: int
    max_batches: int | None = None
    pairing: Pairing | None = None
    record_every: float = 1.0
    checkpoint_every: float | None = 60.0
    simulation_retries: int = 2
    simulation_timeout: float | None = None
    senders: int = 0
    address: str | None = None
    token: str | None = field(default=None, repr=False)
    optimizer_state: Literal["keep", "reset"] = "keep"
    outer_optimizer: OptimizerSpec | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "merge_every_batches"):
            check_count(name, getattr(self, name))
        for name in ("num_simulators", "simulation_retries", "senders"):
            check_count(name, getattr(self, name), least=0)
        if self.max_batches is not None:
            check_count("max_batches", self.max_batches)
        check_seconds("record_every", self.record_every)
        for name in ("checkpoint_every", "simulation_timeout"):
            if getattr(self, name) is not None:
                check_seconds(name, getattr(self, name))
        check_choice("optimizer_state", self.optimizer_state, ("keep", "reset"))
        check_outer_optimizer(self.outer_optimizer)
        self._check_buffer()
        self._check_simulate()
        self._check_inputs()
        self._check_senders()
        check_picklable(simulate=self.simulate, pairing=self.pairing)

    def _check_buffer(self) -> None:
        if not isinstance(self.buffer, BufferSpec):
            raise TypeError(f"buffer={self.buffer!r}: give a BufferSpec, such as BufferSpec('Reservoir', 4096)")
        if self.buffer.pairs != (self.pairing is not None):
            raise ValueError(
                f"pairing={self.pairing!r} with a {self.buffer.kind}: a SimPairedReservoir requires pairing=, "
                "a function of two batches of time steps that returns (x, y); other buffers do not accept it"
            )
        self.buffer.check(self.batch_size)

    def _check_simulate(self) -> None:
        if (self.simulate is not None) != bool(self.num_simulators):
            raise ValueError(
                f"simulate={self.simulate!r} with num_simulators={self.num_simulators}: give a function of an "
                "input and the number of simulations that run at a time, or None and 0 if only senders= send"
            )
        if self.simulate is not None and not callable(self.simulate):
            raise TypeError(f"simulate={self.simulate!r}: give a function of an input that yields samples (x, y)")
        if self.simulate is None and not self.senders:
            raise ValueError("simulate=None with senders=0: give simulate= or senders=, the sources of samples")

    def _check_inputs(self) -> None:
        if not isinstance(self.inputs, Iterable):
            raise TypeError(f"inputs={self.inputs!r}: give a list or an iterator, one item per simulation")
        is_empty = isinstance(self.inputs, Sized) and not len(self.inputs)
        if self.simulate is None and not is_empty:
            raise ValueError("inputs= without simulate=: give the function that is called with each input")
        if self.simulate is not None and is_empty:
            raise ValueError("inputs= is empty: give at least one input of simulate=")

    def _check_senders(self) -> None:
        if self.senders and self.address is None:
            raise ValueError(f"senders={self.senders} need an address= to send to, such as tcp://127.0.0.1:5555")
        if self.address is not None:
            host_and_port(self.address)
            if not isinstance(self.token, str) or not self.token:
                raise ValueError(f"token={self.token!r}: address= needs a non-empty string that senders present")


@dataclass(frozen=True, kw_only=True)
class OnlineJob:
    """What all workers of an online fit share."""

    coordinator: Address
    key: str = field(repr=False)
    """The token that the workers' receivers require of streams."""
    host: str | None
    """The host of the address for senders, ``None`` without one."""
    server_address: ServerAddress
    """The global parameters."""
    num_workers: int
    buffer: BufferSpec
    batch_size: int
    merge_every: int
    """Batches between merges."""
    max_batches: int | None
    report_every: float
    """Seconds between reports."""
    checkpoint_every: float | None
    """Seconds between checkpoints, ``None`` for none."""
    pairing: Pairing | None
    new_optimizer: bool
    seed: int

    @property
    def paired(self) -> bool:
        """Whether batches are pairs of time steps."""
        return self.pairing is not None

    def listening_address(self, local_host: str) -> str | None:
        """Return the address at which a worker listens for streams, ``None`` for a socket file.

        ``local_host`` is this machine's address as the coordinator's machine sees it. Senders on other machines can
        reach that, unless it is the loopback interface: such a worker listens where the coordinator does.
        """
        if self.host is None or is_loopback(self.host) or not is_loopback(local_host):
            inside = self.host is None and self.coordinator.url.startswith(PRIVATE)
            return None if inside else f"tcp://{local_host}:*"
        return f"tcp://{self.host}:*"

    def end_offset(self, worker: int, stream: int, samples: int) -> int:
        """Return the offset that a worker has when it holds all its samples of a stream of ``samples``."""
        return end_offset(worker, stream, samples, self.num_workers, whole=self.paired)

    def make_batch(self, drawn: Any) -> Batch:
        """Return x and y of a batch that the buffer gave."""
        parts = drawn if self.pairing is None else self.pairing(*drawn)
        x, y = parts if isinstance(parts, tuple) and len(parts) == 2 else (parts, None)
        x = x[0] if isinstance(x, tuple) else x
        return Batch(x, y)
