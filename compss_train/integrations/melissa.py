"""Melissa's interface of buffers: ``BufferType`` and ``make_buffer``."""

from collections.abc import Callable
from enum import Enum
from inspect import signature

from compss_train import buffers
from compss_train._utils.validation import check_count


class BufferType(Enum):
    """The types of buffers, with Melissa's names and numbers."""

    FIFO = 0
    FIRO = 1
    Reservoir = 2
    BatchReservoir = 3
    SimPairedReservoir = 4


def make_buffer(
    buffer_size: int,
    buffer_t: BufferType | str = BufferType.FIFO,
    per_server_watermark: int | None = None,
    pseudo_epochs: int | None = None,
    batch_size: int | None = None,
    sweep_size: int | None = None,
    nb_time_steps: int | None = None,
    comm_size: int = 1,
    *,
    seed: int | None = None,
    pin_memory: bool = False,
) -> buffers.Buffer:
    """Return a buffer; the parameters and their order are those of Melissa's ``make_buffer``.

    Parameters
    ----------
    buffer_size:
        The capacity: maximum number of samples held.
    buffer_t:
        The type or its name in any case, FIFO by default.
    per_server_watermark:
        The threshold: the number of samples that a get waits for, at most ``buffer_size``. Required by all types
        but FIFO.
    pseudo_epochs:
        For FIRO: above 1, each sample is returned that many times, after all have been put; 1 by default.
    batch_size:
        Required by BatchReservoir: number of samples that each get returns.
    sweep_size, nb_time_steps:
        Required by SimPairedReservoir: number of simulations, and number of time steps of each.
    comm_size:
        Number of buffers that share the simulations; accepted, without effect.
    seed, pin_memory:
        As in ``Buffer``.

    Parameters that a type does not use are ignored. Raises ``ValueError`` if a required parameter is missing or a
    parameter is out of range.
    """
    names = {name.lower(): kind for name, kind in BufferType.__members__.items()}
    kind = names.get(buffer_t.lower()) if isinstance(buffer_t, str) else buffer_t
    if not isinstance(kind, BufferType):
        raise ValueError(f"buffer_t={buffer_t!r}: choose one of {', '.join(map(str, BufferType))}")
    check_count("buffer_size", buffer_size)
    check_count("per_server_watermark", 0 if per_server_watermark is None else per_server_watermark, least=0)
    check_count("pseudo_epochs", 1 if pseudo_epochs is None else pseudo_epochs)
    options = {
        "threshold": per_server_watermark,
        "passes": pseudo_epochs or 1,
        "batch_size": batch_size,
        "sweep_size": sweep_size,
        "nb_time_steps": nb_time_steps,
    }
    factory: Callable[..., buffers.Buffer] = getattr(buffers, kind.name)
    used = {name: value for name, value in options.items() if name in signature(factory).parameters}
    if missing := " and ".join(name for name, value in used.items() if value is None):
        words = missing.replace("threshold", "per_server_watermark")
        raise ValueError(f"{kind.name} requires {words}; give a value")
    return factory(buffer_size, **used, seed=seed, pin_memory=pin_memory)
