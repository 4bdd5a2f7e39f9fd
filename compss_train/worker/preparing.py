"""Preparation of batches for the training step: collation and transforms, with their own random draws."""

from collections.abc import Iterator
from typing import Any

from compss_train._utils.nested import leaves, map_leaves
from compss_train.data.block_passes import Place
from compss_train.data.order import transform_seed
from compss_train.data.ragged import IGNORED, Ragged
from compss_train.data.sample_reading import Reseed, collate_batch
from compss_train.model.devices import random_state, seed_generators
from compss_train.model.training_spec import ModelReplica
from compss_train.worker.batches import Batch, PlacedBatch


def prepared(
    batches: Iterator[PlacedBatch], replica: ModelReplica, seed: int, *, ragged: bool = False
) -> Iterator[PlacedBatch]:
    """Iterate over collated and transformed batches; empty batches, at the end of a stream, are left out.

    The transforms' random draws are seeded by the fit's seed and the place of the batch, or of the sample for a
    ``train_transform`` by sample: they depend neither on the worker nor on earlier training, and do not affect the
    network's generators.

    Parameters
    ----------
    batches:
        The batches, each with its place.
    replica:
        The model copy whose ``train_transform``, ``transform`` and device are used.
    seed:
        Seed of the fit.
    ragged:
        Whether batches have sequences of different lengths.
    """
    spec = replica.training_spec
    functions = spec.collate, spec.train_transform, spec.transform, spec.samples
    if not ragged and all(each is None for each in functions):
        return batches
    ready = ((place, _prepared(replica, seed, place, batch)) for place, batch in batches)
    return ((place, batch) for place, batch in ready if batch.samples_before != 0)


def _prepared(replica: ModelReplica, fit_seed: int, place: Place, batch: Batch) -> Batch:
    spec = replica.training_spec

    def seed_of(position: int) -> int:
        return transform_seed(fit_seed, place.epoch, place.block, position)

    def reseed(position: int) -> int:
        """Seed all generators for the sample at a position of the place's block; return the seed."""
        seed_generators(seed := seed_of(position), replica.device)
        return seed

    with random_state(seed_of(place.position), replica.device):
        batch = collated(replica, place, batch, reseed)
        before = batch.samples
        if not before:
            return batch
        if spec.samples is not None:
            reseed(place.position)  # transforms draw as for a batch that was not read
        x, y = batch.x, batch.y
        with replica.annotate_errors(x, y, own_target=y is None), replica.autocast():
            if spec.train_transform is not None:
                x, y = spec.train_transform(x, y, lambda sample: reseed(place.position + sample))
            return batch._replace(samples_before=before, x=replica.transformed(x), y=y)


def collated(replica: ModelReplica, place: Place, batch: Batch, reseed: Reseed) -> Batch:
    """Return a batch ready for the transforms, on the replica's device; an empty batch if a stream has ended.

    Sample numbers in the batch are replaced by the samples; ``reseed`` seeds the data set's random draws.
    ``build``'s ``collate`` gets a list of samples, (x, y) or x without targets, and returns a batch of the same
    kind. Without it, sequences of different lengths are padded: x with 0, integer targets with -100, which losses
    ignore. Raises ``TypeError`` for other targets.
    """
    spec = replica.training_spec
    if spec.samples is not None:
        read = spec.samples.read(batch.x.numpy(), place, reseed, spec.collate)
        batch = batch._replace(x=read.x, y=read.y, samples_before=read.samples)
        batch = batch.to(replica.device) if read.samples else batch
    elif spec.collate is not None:
        x, y = collate_batch(spec.collate, batch.x, batch.y, batch.samples)
        return batch._replace(x=x, y=y, samples_before=batch.samples).to(replica.device)
    if not has_ragged(batch):
        return batch
    x = map_leaves(lambda part: part.padded(0) if isinstance(part, Ragged) else part, batch.x)
    return batch._replace(x=x, y=map_leaves(_padded_target, batch.y), samples_before=batch.samples)


def has_ragged(batch: Batch) -> bool:
    """Return whether a batch has sequences of different lengths."""
    return any(isinstance(part, Ragged) for part in leaves(batch.parts))


def _padded_target(part: Any) -> Any:
    if not isinstance(part, Ragged):
        return part
    if part.dtype.is_floating_point or part.dtype.is_complex:
        raise TypeError(
            f"targets of different lengths and dtype {part.dtype} need collate= in build, as nothing says what "
            "losses are to ignore: return them padded, and a mask, for a training_step"
        )
    return part.padded(IGNORED)
