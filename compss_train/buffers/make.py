"""``make_buffer``: a buffer of any kind from one set of parameters."""

from __future__ import annotations

from enum import Enum
from typing import Any

from compss_train.buffers.base import Buffer
from compss_train.buffers.fifo import FIFO
from compss_train.buffers.firo import FIRO
from compss_train.buffers.paired import SimPairedReservoir
from compss_train.buffers.reservoir import BatchReservoir, Reservoir
from compss_train.validation import check_count


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
