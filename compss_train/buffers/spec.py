"""``BufferSpec``: the description of a buffer, from which every worker makes its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from compss_train._utils.validation import check_count
from compss_train.buffers.base import Buffer
from compss_train.buffers.paired import SimPairedReservoir
from compss_train.buffers.queues import FIFO, FIRO
from compss_train.buffers.reservoir import BatchReservoir, Reservoir


@dataclass(frozen=True)
class BufferSpec:
    """A buffer that ``DistributedTrainer.fit`` or ``fit_online`` gives each worker.

    Parameters
    ----------
    type:
        A ``BufferType`` or its name in any case: FIFO, FIRO, Reservoir, BatchReservoir or, of ``fit_online``,
        SimPairedReservoir.
    size:
        The most samples that it holds.
    threshold:
        More samples than this must be held before the first batch; half the size by default. FIFO has none.
    sweep_size, nb_time_steps:
        Of a SimPairedReservoir, which needs them: how many simulations there are, and time steps of each.

    Raises ``ValueError`` for an unknown type, a size below 1, a threshold that is not below the size, and what the
    type needs or has no use for.
    """

    type: BufferType | str
    size: int
    threshold: int | None = None
    sweep_size: int | None = None
    nb_time_steps: int | None = None

    def __post_init__(self) -> None:
        check_count("size", self.size)
        for name in ("sweep_size", "nb_time_steps"):
            self._check_pairing(name, getattr(self, name))
        if self.kind is BufferType.FIFO and self.threshold is not None:
            raise ValueError(f"threshold={self.threshold}: a FIFO has none, leave it out")
        if not 0 <= self.needed < self.size:
            raise ValueError(
                f"threshold={self.threshold}: give an integer from 0 to {self.size - 1}, below the size"
            )

    def _check_pairing(self, name: str, value: int | None) -> None:
        if not self.pairs:
            if value is not None:
                raise ValueError(
                    f"{name}={value}: this is of a SimPairedReservoir; a {self.kind.name} has no use for it"
                )
        elif value is None:
            raise ValueError(f"a SimPairedReservoir needs {name}=, which was not given")
        else:
            check_count(name, value, least=1 if name == "sweep_size" else 2)

    @property
    def pairs(self) -> bool:
        """Whether it gives pairs of time steps."""
        return self.kind is BufferType.SimPairedReservoir

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
        return replace(self, size=min(self.size, max(samples, self.needed + batch_size)), threshold=threshold)

    def make(self, batch_size: int, seed: int, pin_memory: bool = False) -> Buffer:
        """Return such a buffer, empty."""
        return make_buffer(
            self.size,
            self.kind,
            per_server_watermark=self.needed,
            batch_size=batch_size,
            sweep_size=self.sweep_size,
            nb_time_steps=self.nb_time_steps,
            seed=seed,
            pin_memory=pin_memory,
        )


class BufferType(Enum):
    """The kinds of buffers, with Melissa's names and numbers."""

    FIFO = 0
    FIRO = 1
    Reservoir = 2
    BatchReservoir = 3
    SimPairedReservoir = 4

    @classmethod
    def of(cls, value: object, name: str = "type") -> BufferType:
        """Return the type that ``value`` is, or names in any case; raise ``ValueError`` where there is none."""
        if isinstance(value, cls):
            return value
        for kind in cls:
            if isinstance(value, str) and value.lower() == kind.name.lower():
                return kind
        raise ValueError(f"{name}={value!r}: choose one of {', '.join(f'BufferType.{kind.name}' for kind in cls)}")


def make_buffer(
    buffer_size: int,
    buffer_t: BufferType = BufferType.FIFO,
    per_server_watermark: int | None = None,
    pseudo_epochs: int | None = None,
    batch_size: int | None = None,
    sweep_size: int | None = None,
    nb_time_steps: int | None = None,
    comm_size: int = 1,
    *,
    seed: int | None = None,
    pin_memory: bool = False,
) -> Buffer:
    """Return a buffer; the names and their order are those of Melissa's ``make_buffer``.

    Parameters
    ----------
    buffer_size:
        The most samples that it holds.
    buffer_t:
        Its type, FIFO by default.
    per_server_watermark:
        The threshold: samples are got while more than this many are held. All but FIFO need it.
    pseudo_epochs:
        Of FIRO, optional: how often each sample is given, once all are there.
    batch_size:
        Needed by BatchReservoir: samples that each get returns.
    sweep_size, nb_time_steps, comm_size:
        Needed by SimPairedReservoir, the first two: simulations, time steps of each, buffers that share them.
    seed, pin_memory:
        As in ``Buffer``.

    What a type has no use for is ignored. Raises ``ValueError`` where a parameter that it needs is missing, naming
    it, or out of range.
    """
    kind = BufferType.of(buffer_t, "buffer_t")
    check_count("buffer_size", buffer_size)
    if per_server_watermark is not None:
        check_count("per_server_watermark", per_server_watermark, least=0)
    given = {
        "per_server_watermark": per_server_watermark,
        "batch_size": batch_size,
        "sweep_size": sweep_size,
        "nb_time_steps": nb_time_steps,
    }
    maker, needed = _MAKERS[kind]
    if missing := [name for name in needed if given[name] is None]:
        raise ValueError(f"{kind.name} needs {' and '.join(missing)}, which {_are(missing)} not given")
    optional: dict[str, Any] = {"seed": seed, "pin_memory": pin_memory}
    if kind is BufferType.FIRO:
        optional["pseudo_epochs"] = pseudo_epochs
    if kind is BufferType.SimPairedReservoir:
        optional["comm_size"] = comm_size
    buffer: Buffer = maker(buffer_size, *(given[name] for name in needed), **optional)
    return buffer


def _are(names: list[str]) -> str:
    return "was" if len(names) == 1 else "were"


_MAKERS: dict[BufferType, tuple[Any, tuple[str, ...]]] = {
    BufferType.FIFO: (FIFO, ()),
    BufferType.FIRO: (FIRO, ("per_server_watermark",)),
    BufferType.Reservoir: (Reservoir, ("per_server_watermark",)),
    BufferType.BatchReservoir: (BatchReservoir, ("per_server_watermark", "batch_size")),
    BufferType.SimPairedReservoir: (SimPairedReservoir, ("per_server_watermark", "sweep_size", "nb_time_steps")),
}
"""What makes each type, and the parameters that it needs, in the order of its arguments."""
