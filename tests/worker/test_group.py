"""Workers that train in one task: the same bits as in tasks of their own, whatever the groups are."""

from dataclasses import replace

import pytest

from compss_train import BufferSpec, DistributedTrainer, FileDataset, Merge
from compss_train.callbacks import Checkpoint
from compss_train.engines import SerialEngine
from compss_train.worker.inference import evaluate
from compss_train.worker.train import train_group
from tests.helpers.file_fits import SIZES, write_files
from tests.helpers.models import ADAM, assert_same_bits, awkward_net, blocked, classification
from tests.helpers.small_fits import trainer_of

WORKERS = 13
OUTER = {"optimizer": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}


class Places(SerialEngine):
    """The serial engine, which lets workers train in groups as if it had several places."""

    def __init__(self, number):
        super().__init__()
        self.number = number
        self.submitted = []

    def places(self, resources):
        return self.number

    def submit(self, function, *args, **options):
        self.submitted.append((function, args))
        return super().submit(function, *args, **options)


class DearTasks(Places):
    """An engine whose tasks cost so much that workers train in one task a place."""

    traits = replace(SerialEngine.traits, task_seconds=1e6)


def comparable(trainer):
    names = ("loss", "accuracy", "samples", "worker_agreement")
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
def test_any_groups_give_the_same_bits(options):
    x, y = classification(samples=156)
    alone = trainer_of(Places(0), WORKERS)  # an engine that does not know its places
    expected = alone.fit(x, y, num_epochs=2, batch_size=4, **options)
    for engine in (Places(1), Places(2), DearTasks(2)):
        grouped = trainer_of(engine, WORKERS)
        assert_same_bits(grouped.fit(x, y, num_epochs=2, batch_size=4, **options), expected)
        assert comparable(grouped) == comparable(alone)
        tasks = sum(function is train_group for function, _ in engine.submitted)
        assert tasks < WORKERS * len(grouped.history)


def of_bad_files(trainer, folder, x, y):
    write_files(folder, (x[: sum(SIZES)], y[: sum(SIZES)]))
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
    "train", [of_bad_files, after_a_fit_of_some_workers, after_a_fit_in_tasks_of_their_own, in_tasks_of_their_own]
)
def test_states_and_votes_are_the_same_in_groups(tmp_path, train):
    x, y = classification(samples=65)
    alone, grouped = (train(trainer_of(Places(places), WORKERS), tmp_path, x, y) for places in (0, 1))
    assert_same_bits(alone, grouped)


@pytest.mark.parametrize("form", ["blocks", "files", "no targets"])
def test_evaluation_has_the_same_bits_in_fewer_tasks(tmp_path, form):
    write_files(tmp_path, classification(samples=sum(SIZES)))
    x, y = classification(samples=130)
    data = {"blocks": (x, y), "files": (FileDataset(f"{tmp_path}/*.npz"),), "no targets": (x,)}[form]
    results = []
    for places in (0, 1):
        engine = Places(places)
        trainer = DistributedTrainer(WORKERS, engine=engine, seed=0, threads=1)
        mean = lambda output, target: output.square().mean()  # noqa: E731
        trainer.build(awkward_net(), ADAM, mean if form == "no targets" else "cross_entropy")
        results.append(trainer.evaluate(*data))
        tasks = sum(function is evaluate for function, _ in engine.submitted)
        workers = len(SIZES) if form == "files" else WORKERS
        assert tasks == workers if places == 0 or workers < 6 else tasks < workers
    assert results[0] == results[1]


def test_a_checkpoint_resumes_with_other_groups(tmp_path):
    x, y = classification(samples=130)
    expected = trainer_of(Places(0), WORKERS).fit(x, y, num_epochs=4, batch_size=5)
    trainer_of(Places(2), WORKERS).fit(x, y, num_epochs=2, batch_size=5, callbacks=[Checkpoint(tmp_path)])
    resumed = trainer_of(Places(1), WORKERS).fit(x, y, num_epochs=4, batch_size=5, resume=tmp_path)
    assert_same_bits(resumed, expected)
