"""The options of an online fit, checked before any task starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass, field
from typing import Any, get_args

from compss_train._utils.validation import check_choice, check_count, check_seconds
from compss_train.buffers import BufferSpec
from compss_train.online.job import Pairing
from compss_train.online.sender import host_and_port
from compss_train.training.build_arguments import check_picklable
from compss_train.training.fit_options import OptimizerState


@dataclass(frozen=True)
class OnlineOptions:
    """How ``DistributedTrainer.fit_online`` trains; its docstring explains each."""

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
    optimizer_state: OptimizerState = "keep"

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
        check_choice("optimizer_state", self.optimizer_state, get_args(OptimizerState))
        self._check_buffer()
        self._check_sources()

    def _check_buffer(self) -> None:
        if not isinstance(self.buffer, BufferSpec):
            raise TypeError(f"buffer={self.buffer!r}: give a BufferSpec, such as BufferSpec('Reservoir', 4096)")
        if self.buffer.pairs != (self.pairing is not None):
            raise ValueError(
                f"pairing={self.pairing!r} with a {self.buffer.kind.name}: pairing=, a function of two batches of "
                "time steps that returns (x, y), belongs to a SimPairedReservoir, which needs it"
            )
        self.buffer.check(self.batch_size)

    def _check_sources(self) -> None:
        if not isinstance(self.inputs, Iterable):
            raise TypeError(f"inputs={self.inputs!r}: give a list or an iterator, one item a simulation")
        if (self.simulate is not None) != bool(self.num_simulators):
            raise ValueError(
                f"simulate={self.simulate!r} with num_simulators={self.num_simulators}: give a function of an "
                "input and how many simulations may run at a time, or None and 0 where only senders= send"
            )
        if self.simulate is not None and not callable(self.simulate):
            raise TypeError(f"simulate={self.simulate!r}: give a function of an input that yields samples (x, y)")
        if self.simulate is None and not self.senders:
            raise ValueError("there is neither simulate= nor senders=: nobody would send a sample")
        if self.senders and self.address is None:
            raise ValueError(f"senders={self.senders} need an address= to send to, such as tcp://127.0.0.1:5555")
        if self.address is not None:
            host_and_port(self.address)
            if not isinstance(self.token, str) or not self.token:
                raise ValueError(f"token={self.token!r}: address= needs a text that senders must know")
        if self.simulate is None and not (isinstance(self.inputs, Sized) and not len(self.inputs)):
            raise ValueError("inputs= are given, but no simulate= to call with them")
        if self.simulate is not None and isinstance(self.inputs, Sized) and not len(self.inputs):
            raise ValueError("inputs= is empty: nothing would be simulated")
        check_picklable(simulate=self.simulate, pairing=self.pairing)
