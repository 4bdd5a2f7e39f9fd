"""Buffer types, ``make_buffer``, and ``BufferSpec``, the description from which each worker makes its buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any

from compss_train._utils.validation import check_count
from compss_train.buffers.base import Buffer
from compss_train.buffers.paired import SimPairedReservoir
from compss_train.buffers.queues import FIFO, FIRO
from compss_train.buffers.reservoir import BatchReservoir, Reservoir


@dataclass(frozen=True)
class BufferSpec:
    """Description of the buffer that each worker uses in ``DistributedTrainer.fit`` or ``fit_online``.

    Parameters
    ----------
    type:
        A ``BufferType`` or its name, case-insensitive: FIFO, FIRO, Reservoir, BatchReservoir or, in ``fit_online``
        only, SimPairedReservoir.
    size:
        Maximum number of samples held.
    threshold:
        The minimum number of samples held for a batch to be drawn, at most the size; half the size by default. FIFO
        has none.
    sweep_size, nb_time_steps:
        Required by SimPairedReservoir only: number of simulations, and number of time steps of each.
    pseudo_epochs:
        For FIRO only: above 1, a worker first puts all its samples of an epoch, for which ``size`` must suffice,
        and then draws each of them that many times, in passes over all. 1, or ``None`` (default), draws each once,
        as they come.
    comm_size:
        For SimPairedReservoir only: number of buffers that share the simulations, 1 by default.

    Raises ``ValueError`` for an unknown type, a size below 1, a threshold above the size, and parameters that the
    type requires and lacks, or does not use.
    """

    type: BufferType | str
    size: int
    threshold: int | None = None
    sweep_size: int | None = None
    nb_time_steps: int | None = None
    pseudo_epochs: int | None = None
    comm_size: int | None = None

    def __post_init__(self) -> None:
        check_count("size", self.size)
        for name, kind, least in _OF_ONE_KIND:
            self._check_parameter(name, BufferType[kind], least)
        if self.kind is BufferType.FIFO and self.threshold is not None:
            raise ValueError(f"threshold={self.threshold}: a FIFO has no threshold; remove it")
        if not 0 <= self.needed <= self.size:
            raise ValueError(f"threshold={self.threshold}: give an integer from 0 to {self.size}, the size")

    def __repr__(self) -> str:
        """As of all dataclasses; the last two fields only where given, as checkpoints compare fits by this text."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        given = [
            f"{name}={value!r}"
            for name, value in values.items()
            if value is not None or name not in ("pseudo_epochs", "comm_size")
        ]
        return f"BufferSpec({', '.join(given)})"

    def _check_parameter(self, name: str, kind: BufferType, least: int) -> None:
        """Check a parameter that only one kind of buffer has."""
        value = getattr(self, name)
        if value is not None and kind is not self.kind:
            raise ValueError(f"{name}={value}: only a {kind.name} has it, not a {self.kind.name}; remove it")
        if value is not None:
            check_count(name, value, least)
        elif kind is self.kind and name in _FACTORIES[kind][1]:
            raise ValueError(f"a {kind.name} requires {name}=, which was not given")

    @property
    def pairs(self) -> bool:
        """Whether the buffer returns pairs of time steps."""
        return self.kind is BufferType.SimPairedReservoir

    @property
    def kind(self) -> BufferType:
        """The buffer's type."""
        return BufferType.of(self.type)

    @property
    def needed(self) -> int:
        """The threshold, or its default; 0 for a FIFO."""
        if self.kind is BufferType.FIFO:
            return 0
        return self.size // 2 if self.threshold is None else check_count("threshold", self.threshold, least=0)

    @property
    def draws_in_step(self) -> bool:
        """Whether every sample is returned the same number of times, so that draws follow the counts of puts."""
        return self.kind in (BufferType.FIFO, BufferType.FIRO)

    @property
    def passes(self) -> int:
        """How often all samples are returned, after all have been put if it is more than once."""
        return self.pseudo_epochs or 1

    def check(self, batch_size: int) -> None:
        """Raise ``ValueError`` if batches of this size can never be available."""
        if batch_size > self.size:
            raise ValueError(
                f"a batch of {batch_size} samples cannot come from a {self.kind.name} of size {self.size}: give a "
                "larger size or smaller batches"
            )

    def check_samples(self, samples: int) -> None:
        """Raise ``ValueError`` unless all samples of a worker's epoch fit, where they must."""
        if self.passes > 1 and samples > self.size:
            raise ValueError(
                f"pseudo_epochs={self.pseudo_epochs}: a worker's buffer must hold all its samples of an epoch, up "
                f"to {samples}, and has size={self.size}; give size={samples}, use more workers, or remove "
                "pseudo_epochs"
            )

    def put_counts(self, sizes: Sequence[int]) -> list[int]:
        """Return how many samples have been put at each draw of batches of these sizes, which are all samples.

        The first batch is drawn as soon as the threshold is reached; then two samples are put for each one drawn
        until the buffer is full, and one for one from then on. So the buffer's content at a draw, and with it the
        draw, is reproducible. With pseudo-epochs, all samples are put before the first draw.
        """
        total, put, got, counts = sum(sizes), 0, 0, list[int]()
        if self.passes > 1:
            return [total] * len(sizes) * self.passes
        for size in sizes:
            put = min(total, got + self.size, put + 2 * size if got else max(self.needed, size))
            counts.append(put)
            got += size
        return counts

    def limited(self, samples: int, batch_size: int) -> BufferSpec:
        """Return a description whose size does not exceed what a total of ``samples`` samples can fill."""
        threshold = None if self.kind is BufferType.FIFO else self.needed
        return replace(self, size=min(self.size, max(samples, self.needed + batch_size)), threshold=threshold)

    def make(self, batch_size: int, seed: int, pin_memory: bool = False) -> Buffer:
        """Return a new, empty buffer."""
        return make_buffer(
            self.size,
            self.kind,
            per_server_watermark=self.needed,
            pseudo_epochs=self.pseudo_epochs,
            batch_size=batch_size,
            sweep_size=self.sweep_size,
            nb_time_steps=self.nb_time_steps,
            comm_size=self.comm_size or 1,
            seed=seed,
            pin_memory=pin_memory,
        )


class BufferType(Enum):
    """The types of buffers, with the names and numbers of Melissa."""

    FIFO = 0
    FIRO = 1
    Reservoir = 2
    BatchReservoir = 3
    SimPairedReservoir = 4

    @classmethod
    def of(cls, value: object, name: str = "type") -> BufferType:
        """Return the type ``value``, or that of this case-insensitive name; raise ``ValueError`` for others."""
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
    """Return a buffer; the parameters and their order are those of Melissa's ``make_buffer``.

    Parameters
    ----------
    buffer_size:
        Maximum number of samples held.
    buffer_t:
        The type, FIFO by default.
    per_server_watermark:
        The threshold: the minimum number of samples held for a get to be allowed, at most ``buffer_size``. Required
        by all types but FIFO.
    pseudo_epochs:
        Optional, for FIRO: above 1, each sample is returned that many times, after all have been put.
    batch_size:
        Required by BatchReservoir: number of samples that each get returns.
    sweep_size, nb_time_steps:
        Required by SimPairedReservoir: number of simulations, and number of time steps of each.
    comm_size:
        Optional, for SimPairedReservoir: number of buffers that share the simulations.
    seed, pin_memory:
        As in ``Buffer``.

    Parameters that a type does not use are ignored. Raises ``ValueError`` if a required parameter is missing, or
    one is out of range.
    """
    kind = BufferType.of(buffer_t, "buffer_t")
    check_count("buffer_size", buffer_size)
    if per_server_watermark is not None:
        check_count("per_server_watermark", per_server_watermark, least=0)
    values = {
        "per_server_watermark": per_server_watermark,
        "batch_size": batch_size,
        "sweep_size": sweep_size,
        "nb_time_steps": nb_time_steps,
    }
    factory, required = _FACTORIES[kind]
    if missing := [name for name in required if values[name] is None]:
        verb = "was" if len(missing) == 1 else "were"
        raise ValueError(f"{kind.name} requires {' and '.join(missing)}, which {verb} not given")
    optional: dict[str, Any] = {"seed": seed, "pin_memory": pin_memory}
    if kind is BufferType.FIRO:
        optional["pseudo_epochs"] = pseudo_epochs
    if kind is BufferType.SimPairedReservoir:
        optional["comm_size"] = comm_size
    buffer: Buffer = factory(buffer_size, *(values[name] for name in required), **optional)
    return buffer


_FACTORIES: dict[BufferType, tuple[Any, tuple[str, ...]]] = {
    BufferType.FIFO: (FIFO, ()),
    BufferType.FIRO: (FIRO, ("per_server_watermark",)),
    BufferType.Reservoir: (Reservoir, ("per_server_watermark",)),
    BufferType.BatchReservoir: (BatchReservoir, ("per_server_watermark", "batch_size")),
    BufferType.SimPairedReservoir: (SimPairedReservoir, ("per_server_watermark", "sweep_size", "nb_time_steps")),
}
"""The class of each type and its required parameters, in the order of its arguments."""

_OF_ONE_KIND = (
    ("sweep_size", "SimPairedReservoir", 1),
    ("nb_time_steps", "SimPairedReservoir", 2),
    ("pseudo_epochs", "FIRO", 1),
    ("comm_size", "SimPairedReservoir", 1),
)
"""Parameters of ``BufferSpec`` that only one type has, and their least values."""
