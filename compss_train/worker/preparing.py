"""What is done with a batch before the training step: it is read, collated and transformed."""

from collections.abc import Iterator
from typing import Any

from compss_train._utils.nested import leaves, map_leaves
from compss_train.data.collating import collate_batch, split_targets
from compss_train.data.generators import seed_all
from compss_train.data.order import transform_seed
from compss_train.data.ragged import Ragged
from compss_train.data.sample_reading import Reseed, SampleReader
from compss_train.model.devices import random_state, seed_generators
from compss_train.model.losses import IGNORE_INDEX
from compss_train.model.replica import ModelReplica
from compss_train.worker.batches import Batch
from compss_train.worker.work import Job


def prepared_batches(batches: Iterator[Batch], replica: ModelReplica, job: Job) -> Iterator[Batch]:
    """Iterate over collated and transformed batches, without empty ones at the end of a stream.

    The transforms' random draws are seeded by the fit's seed and the place of the batch, or of the
    sample for a ``train_transform`` by sample: they depend neither on the worker nor on earlier
    training, and do not affect the network's generators.
    """
    functions = (replica.collate, replica.train_transform, replica.transform, job.reader)
    if not job.structure.ragged and all(function is None for function in functions):
        return batches
    prepared = (_prepared(batch, replica, job) for batch in batches)
    return (batch for batch in prepared if batch.samples_before != 0)


def _prepared(batch: Batch, replica: ModelReplica, job: Job) -> Batch:
    def seed_at(position: int) -> int:
        return transform_seed(job.seed, batch.epoch, batch.block, position)

    def reseed(position: int) -> int:
        """Seed all generators for a position of the batch's block, and return the seed."""
        seed = seed_at(position)
        seed_generators(seed, replica.device)
        if job.reader is not None:
            seed_all(job.reader.generators, seed)
        return seed

    def reseed_for_sample(number: int) -> int:
        return reseed(batch.position + number)

    with random_state(seed_at(batch.position), replica.device):
        collated_batch = collated(batch, replica, job.reader, reseed)
        if collated_batch.as_made and replica.training_step is None:
            collated_batch = with_targets(collated_batch)
        samples = collated_batch.samples
        if not samples:
            return collated_batch
        if job.reader is not None:
            reseed(batch.position)  # transforms draw as for a batch that was not read
        x = collated_batch.x
        y = collated_batch.y
        with replica.annotate_errors(x, y, own_target=y is None), replica.autocast():
            if replica.train_transform is not None:
                x, y = replica.train_transform(x, y, reseed_for_sample)
            x = replica.transformed(x)
        return collated_batch._replace(samples_before=samples, x=x, y=y)


def collated(
    batch: Batch, replica: ModelReplica, reader: SampleReader | None, reseed: Reseed
) -> Batch:
    """Return a batch for the transforms, on the replica's device; an empty one if a stream ended.

    ``reader`` replaces sample numbers in the batch by the samples; ``reseed`` seeds the data set's
    random draws. ``build``'s ``collate`` gets a list of samples, (x, y) or x without targets, and
    returns a batch of the same kind. Without it, sequences of different lengths are padded: x with
    0, integer targets with -100, which losses ignore. Raises ``TypeError`` for other targets.
    """
    collate = replica.collate
    if reader is not None:
        read = reader.read(
            batch.x.numpy(), batch.epoch, batch.position, reseed=reseed, collate=collate
        )
        as_made = read.as_made or (collate is not None and read.y is None)
        batch = batch._replace(x=read.x, y=read.y, samples_before=read.samples, as_made=as_made)
        if read.samples:
            batch = batch.to(replica.device)
    elif collate is not None:
        x, y = collate_batch(collate, batch.x, batch.y, samples=batch.samples)
        made = batch._replace(x=x, y=y, samples_before=batch.samples, as_made=y is None)
        return made.to(replica.device)
    if not any(isinstance(part, Ragged) for part in leaves(batch.parts)):
        return batch
    x = map_leaves(_padded, batch.x)
    y = map_leaves(_padded_target, batch.y)
    return batch._replace(x=x, y=y, samples_before=batch.samples)


def with_targets(batch: Batch) -> Batch:
    """Return a batch ``as_made`` for a loss: targets may be a part of what ``collate`` made."""
    x, y = split_targets(batch.x)
    return batch._replace(x=x, y=y)


def _padded(part: Any) -> Any:
    return part.padded(0) if isinstance(part, Ragged) else part


def _padded_target(part: Any) -> Any:
    check_target(part)
    return part.padded(IGNORE_INDEX) if isinstance(part, Ragged) else part


def check_target(part: Any) -> None:
    """Raise ``TypeError`` for targets of different lengths that cannot be padded."""
    if isinstance(part, Ragged) and (part.dtype.is_floating_point or part.dtype.is_complex):
        raise TypeError(
            f"targets of different lengths and dtype {part.dtype} need collate= in build, "
            "because losses do not know what to ignore: return them padded, and a mask, for a "
            "training_step"
        )
