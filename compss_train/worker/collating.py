"""Batches as the transforms get them: of samples that are read by number, padded, or made by ``collate``."""

from typing import Any

from compss_train._utils.nested import leaves, map_leaves
from compss_train.data.block_passes import Place
from compss_train.data.collation import collate_pairs
from compss_train.data.ragged import IGNORED, Ragged
from compss_train.data.sample_reading import Reseed
from compss_train.model.training_spec import ModelReplica
from compss_train.worker.batches import Batch


def collated(replica: ModelReplica, place: Place, batch: Batch, reseed: Reseed) -> Batch:
    """Return a batch as the transforms get it, on the replica's device; one without samples where a stream ended.

    Where the batch has numbers of samples, these are read; ``reseed`` seeds the random draws of the data set.
    ``collate`` of ``build`` gets a list of samples, (x, y) or x where there is no y, and returns a batch of the
    same kind. Without, sequences of different lengths are padded: those of x with 0, integer targets with -100,
    which losses ignore. Raises ``TypeError`` for other targets.
    """
    spec = replica.training_spec
    if spec.samples is not None:
        read = spec.samples.read(batch.x.numpy(), place, reseed, spec.collate)
        batch = batch._replace(x=read.x, y=read.y, samples_before=read.samples)
        batch = batch.to(replica.device) if read.samples else batch
    elif spec.collate is not None:
        x, y = collate_pairs(spec.collate, [_sample(batch, number) for number in range(batch.samples)])
        return batch._replace(x=x, y=y, samples_before=batch.samples)
    return _padded(batch) if has_ragged(batch) else batch


def _padded(batch: Batch) -> Batch:
    x = map_leaves(lambda part: part.padded(0) if isinstance(part, Ragged) else part, batch.x)
    return batch._replace(x=x, y=map_leaves(_padded_target, batch.y), samples_before=batch.samples)


def has_ragged(batch: Batch) -> bool:
    """Return whether a batch has sequences of different lengths."""
    return any(isinstance(part, Ragged) for part in leaves(batch.parts))


def _sample(batch: Batch, number: int) -> tuple[Any, Any]:
    x = map_leaves(lambda part: part[number], batch.x)
    return x, None if batch.y is None else map_leaves(lambda part: part[number], batch.y)


def _padded_target(part: Any) -> Any:
    if not isinstance(part, Ragged):
        return part
    if part.dtype.is_floating_point or part.dtype.is_complex:
        raise TypeError(
            f"targets of different lengths and dtype {part.dtype} need collate= in build, as nothing says what "
            "losses are to ignore: return them padded, and a mask, for a training_step"
        )
    return part.padded(IGNORED)
