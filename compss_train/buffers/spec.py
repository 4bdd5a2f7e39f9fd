"""Buffer types, ``make_buffer``, and ``BufferSpec``, the description from which each worker makes its buffer."""

from __future__ import annotations

from collections.abc import Sequence
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
    """Description of the buffer that each worker uses in ``DistributedTrainer.fit`` or ``fit_online``.

    Parameters
    ----------
    type:
        A ``BufferType`` or its name, case-insensitive: FIFO, FIRO, Reservoir, BatchReservoir or, in ``fit_online``
        only, SimPairedReservoir.
    size:
        Maximum number of samples held.
    threshold:
        The first batch is available when more samples than this are held; half the size by default. FIFO has none.
    sweep_size, nb_time_steps:
        Required by SimPairedReservoir only: number of simulations, and number of time steps of each.

    Raises ``ValueError`` for an unknown type, a size below 1, a threshold that is not below the size, and
    parameters that the type requires and lacks, or does not use.
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
            raise ValueError(f"threshold={self.threshold}: a FIFO has no threshold; remove it")
        if not 0 <= self.needed < self.size:
            raise ValueError(
                f"threshold={self.threshold}: give an integer from 0 to {self.size - 1}, below the size"
            )

    def _check_pairing(self, name: str, value: int | None) -> None:
        if not self.pairs:
            if value is not None:
                raise ValueError(
                    f"{name}={value}: only a SimPairedReservoir has it, not a {self.kind.name}; remove it"
                )
        elif value is None:
            raise ValueError(f"a SimPairedReservoir requires {name}=, which was not given")
        else:
            check_count(name, value, least=1 if name == "sweep_size" else 2)

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
    def gives_each_once(self) -> bool:
        """Whether every sample is returned exactly once."""
        return self.kind in (BufferType.FIFO, BufferType.FIRO)

    def check(self, batch_size: int) -> None:
        """Raise ``ValueError`` if batches of this size can never be available."""
        room = self.size - self.needed if self.kind is BufferType.FIRO else self.size
        if batch_size > room:
            raise ValueError(
                f"a batch of {batch_size} samples cannot come from a {self.kind.name} of size {self.size} with "
                f"threshold {self.needed}: give a larger size, a lower threshold or smaller batches"
            )

    def put_counts(self, sizes: Sequence[int]) -> list[int]:
        """Return how many samples have been put at each draw of batches of these sizes, which are all samples.

        The first batch is drawn as soon as the threshold is reached; then two samples are put for each one drawn
        until the buffer is full, and one for one from then on. So the buffer's content at a draw, and with it the
        draw, is reproducible.
        """
        total, put, got, counts = sum(sizes), 0, 0, []
        for size in sizes:
            put = min(total, got + self.size, put + 2 * size if got else self.needed + size)
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
            batch_size=batch_size,
            sweep_size=self.sweep_size,
            nb_time_steps=self.nb_time_steps,
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
        The threshold: samples are returned while more than this many are held. Required by all types but FIFO.
    pseudo_epochs:
        Optional, for FIRO: how often each sample is returned, after all have been put.
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
