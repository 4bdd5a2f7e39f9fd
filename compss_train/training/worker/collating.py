"""Batches of samples that differ in length: padded, or made by the function ``collate`` of ``build``."""

from collections.abc import Callable
from typing import Any

from compss_train._utils.nested import leaves, map_leaves
from compss_train.data.ragged import IGNORED, Ragged
from compss_train.training.worker.batches import Batch


def collated(batch: Batch, collate: Callable[[list[Any]], Any] | None) -> Batch:
    """Return a batch as the transforms get it.

    ``collate`` gets a list of samples, (x, y) or x where there is no y, and returns a batch of the same kind.
    Without, sequences of different lengths are padded: those of x with 0, integer targets with -100, which losses
    ignore. Raises ``TypeError`` for other targets.
    """
    if collate is None:
        x = map_leaves(lambda part: part.padded(0) if isinstance(part, Ragged) else part, batch.x)
        return batch._replace(x=x, y=map_leaves(_padded_target, batch.y), samples_before=batch.samples)
    made = collate([_sample(batch, number) for number in range(batch.samples)])
    if batch.y is None:
        return batch._replace(x=made, samples_before=batch.samples)
    if not isinstance(made, tuple | list) or len(made) != 2:
        raise TypeError(f"collate returned a {type(made).__name__} for a list of (x, y); return both, as (x, y)")
    return batch._replace(x=made[0], y=made[1], samples_before=batch.samples)


def has_ragged(batch: Batch) -> bool:
    """Return whether a batch has sequences of different lengths."""
    return any(isinstance(part, Ragged) for part in leaves(batch.parts))


def _sample(batch: Batch, number: int) -> Any:
    x = map_leaves(lambda part: part[number], batch.x)
    return x if batch.y is None else (x, map_leaves(lambda part: part[number], batch.y))


def _padded_target(part: Any) -> Any:
    if not isinstance(part, Ragged):
        return part
    if part.dtype.is_floating_point or part.dtype.is_complex:
        raise TypeError(
            f"targets of different lengths and dtype {part.dtype} need collate= in build, as nothing says what "
            "losses are to ignore: return them padded, and a mask, for a training_step"
        )
    return part.padded(IGNORED)
