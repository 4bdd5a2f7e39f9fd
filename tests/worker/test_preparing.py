"""Transforms between the training steps, with random draws of their own; copies to GPUs."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from compss_train import BufferSpec, DistributedTrainer, FileDataset, Merge
from compss_train.data.order import transform_seed
from compss_train.engines import SerialEngine
from compss_train.engines.mapping import map_chunk
from compss_train.model.devices import random_state
from compss_train.worker.inference import evaluate
from tests.helpers.file_fits import SIZES, write_files
from tests.helpers.models import (
    ADAM,
    SGD,
    assert_same_bits,
    awkward_net,
    blocked,
    classification,
    noisy,
    noisy_by_numpy,
)
from tests.helpers.plain_loop import OPTIMIZERS, plain_steps, transformed_batches
from tests.helpers.small_fits import STILL, fit, trainer_of

X, Y = classification(samples=62)


def flipped(x):
    return torch.stack([row.flip(0) if random.random() < 0.5 else row for row in x])


def noisy_by_all(x):
    return noisy(flipped(noisy_by_numpy(x)))


def noisy_by_a_seed_of_its_own(x):
    with torch.random.fork_rng():
        torch.manual_seed(8)
        return noisy(x)


def scaled(x):
    return x / 3


RANDOM = [noisy_by_all, noisy_by_a_seed_of_its_own]


@pytest.mark.parametrize("transform", [scaled, *RANDOM])
def test_one_worker_is_the_loop_with_a_seed_a_batch(engine, transform):
    """The network has Dropout, whose draws are as if the transform drew nothing."""
    trainer = trainer_of(engine, 1, seed=3, optimizer=SGD, transform=transform)
    ours = fit(trainer, data=blocked(X, Y, 4), num_epochs=2, num_batches_per_worker=3, **STILL)

    def transformed(x, y, place):
        with random_state(transform_seed(3, *place), "cpu"):
            return transform(x), y

    batches = transformed_batches(transformed, X, Y, 4, 3, 2)
    assert_same_bits(ours, plain_steps(awkward_net(), OPTIMIZERS[0][1], batches, seed=3))


def test_an_error_of_the_transform_comes_with_its_batch():
    def divide(x):
        if X[20, 0] in x[:, 0]:
            raise ZeroDivisionError("this batch")
        return x

    with pytest.raises(ZeroDivisionError, match="this batch") as error:
        fit(
            trainer_of(workers=1, transform=divide),
            data=blocked(X[:57], Y[:57], 1),
            num_epochs=1,
            batch_size=6,
        )
    assert "batch of x with shape (6, 6)" in error.value.__notes__[0]


WORKERS = 13
OUTER = {"optimizer": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}


class Slots(SerialEngine):
    """The serial engine, which lets workers share tasks as if it had several slots."""

    def __init__(self, number):
        super().__init__()
        self.number = number
        self.submitted = []

    def slots(self, resources):
        return self.number

    def submit(self, function, *args, **options):
        self.submitted.append((function, args))
        return super().submit(function, *args, **options)


class DearTasks(Slots):
    """An engine whose tasks cost so much that workers train in one task a place."""

    traits = replace(SerialEngine.traits, task_seconds=1e6)


def comparable(trainer):
    names = ("loss", "accuracy", "samples")
    return [[record.get(name) for name in names] for record in trainer.history]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": "total"},
        {"merge": Merge(every=2, unit="batches", outer_optimizer=OUTER, optimizer_state="average")},
        {"buffer": BufferSpec("FIRO", 8), "merge": Merge(averaging="ema")},
    ],
    ids=["plain", "pieces", "outer", "buffer"],
)
def test_any_chunks_give_the_same_bits(options):
    x, y = classification(samples=130)
    alone = trainer_of(Slots(0), WORKERS)  # an engine that does not know its slots
    expected = alone.fit(x, y, num_epochs=2, batch_size=4, **options)
    for engine in (Slots(2), DearTasks(2)):
        grouped = trainer_of(engine, WORKERS)
        assert_same_bits(grouped.fit(x, y, num_epochs=2, batch_size=4, **options), expected)
        assert comparable(grouped) == comparable(alone)
        tasks = sum(function is map_chunk for function, _ in engine.submitted)
        assert tasks < WORKERS * len(grouped.history)


def of_bad_files(trainer, folder, x, y):
    for number, (part_x, part_y) in enumerate(
        zip(np.split(x, WORKERS), np.split(y, WORKERS), strict=True)
    ):
        np.savez(folder / f"{number}.npz", x=part_x, y=part_y)
    dataset = FileDataset(f"{folder}/*.npz", on_bad_file="skip")
    (folder / "1.npz").write_bytes(b"")
    return trainer.fit(dataset, num_epochs=2, batch_size=5)


def after_a_fit_of_some_workers(trainer, folder, x, y):
    trainer.fit(*blocked(x[:20], y[:20], 4), num_epochs=1, batch_size=5)
    return trainer.fit(x, y, num_epochs=1, batch_size=5)


def after_a_fit_in_tasks_of_their_own(trainer, folder, x, y):
    trainer.fit(*blocked(x, y, 1), num_epochs=2, batch_size=5, merge="commutative")
    return trainer.fit(x, y, num_epochs=2, batch_size=5)


def in_tasks_of_their_own(trainer, folder, x, y):
    trainer.fit(x, y, num_epochs=2, batch_size=5)
    return trainer.fit(*blocked(x, y, 1), num_epochs=2, batch_size=5, merge="commutative")


@pytest.mark.filterwarnings("ignore:skipped", "ignore:13 workers share")
@pytest.mark.parametrize(
    "train",
    [
        of_bad_files,
        after_a_fit_of_some_workers,
        after_a_fit_in_tasks_of_their_own,
        in_tasks_of_their_own,
    ],
)
def test_states_and_votes_are_the_same_in_chunks(tmp_path, train):
    x, y = classification(samples=65)
    alone, grouped = (train(trainer_of(Slots(slots), WORKERS), tmp_path, x, y) for slots in (0, 1))
    assert_same_bits(alone, grouped)


@pytest.mark.parametrize("form", ["blocks", "files", "no targets"])
def test_evaluation_has_the_same_bits_in_fewer_tasks(tmp_path, form):
    write_files(tmp_path, classification(samples=sum(SIZES)))
    x, y = classification(samples=130)
    data = {"blocks": (x, y), "files": (FileDataset(f"{tmp_path}/*.npz"),), "no targets": (x,)}[
        form
    ]
    results = []
    for slots in (0, 1):
        engine = Slots(slots)
        trainer = DistributedTrainer(WORKERS, engine=engine, seed=0, threads=1)
        mean = lambda output, target: output.square().mean()  # noqa: E731
        trainer.build(awkward_net(), ADAM, mean if form == "no targets" else "cross_entropy")
        results.append(trainer.evaluate(*data))
        tasks = sum(function is evaluate for function, _ in engine.submitted)
        workers = len(SIZES) if form == "files" else WORKERS
        assert tasks == workers if slots == 0 or workers < 6 else tasks < workers
    assert results[0] == results[1]
