"""The callback that writes checkpoints: which rounds are saved and kept."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from compss_train import Merge, load
from compss_train.callbacks import Callback, Checkpoint, EarlyStopping
from compss_train.data import locations
from compss_train.model import parameters
from compss_train.reports.history import line_of
from compss_train.training import shared_history
from compss_train.training.checkpoints import list_checkpoints, read_latest_checkpoint
from compss_train.training.remote_checkpoints import RemoteFolder, local_copy
from compss_train.training.snapshot import Snapshot
from tests.helpers.callbacks import InterruptAt
from tests.helpers.models import ADAM, assert_same_bits
from tests.helpers.small_fits import PLAIN_SGD, X, Y, assert_alike, fit, trainer_of

VALIDATION = {"validation_data": (X[:20], Y[:20])}


class ScriptedTrainer:
    """A trainer with only a history."""

    num_workers = 1
    resumed_from = None
    stopping = None

    def __init__(self):
        self.history = []

    def checkpoint_bytes(self):
        return 2**16

    @property
    def state_id(self):
        return self.history[-1]["round"]

    def snapshot(self):
        return Snapshot(
            parameters={},
            workers=(),
            epoch=0,
            history=list(self.history),
            setting={},
            progress=None,
            callbacks={},
            schedule={},
        )

    def run(self, callback, values):
        """Return the rounds that are there after each round, and at the end."""
        callback.on_fit_start(self, None)
        there = []
        for value in values:
            self.history.append({"round": len(self.history), "loss": value})
            callback.on_round_end(self, self.history[-1])
            there.append(list(list_checkpoints(callback.folder)))
        callback.on_fit_end(self)
        return [*there, list(list_checkpoints(callback.folder))]


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=9),
    st.integers(1, 4),
    st.integers(1, 3),
    st.booleans(),
)
def test_due_checkpoints_are_written_and_the_latest_and_best_kept(
    tmp_path_factory, values, every, keep, best
):
    callback = Checkpoint(tmp_path_factory.mktemp("it"), every, keep, "loss" if best else None)
    there = ScriptedTrainer().run(callback, values)
    written = []
    best_round = None
    for number, value in enumerate(values):
        is_best = best and (best_round is None or value < values[best_round])
        best_round = number if is_best else best_round
        if is_best or (number + 1) % every == 0:
            written = [*written, number]
        kept = sorted(
            {*written[-keep:], *([] if best_round is None else [best_round])} & {*written}
        )
        assert there[number] == kept
    last = len(values) - 1
    newest = sorted({*written, last})[-keep:]
    assert there[-1] == sorted({*newest, *([] if best_round is None else [best_round])})
    assert callback.best_round == best_round
    assert callback.path == callback.folder / f"round-{last:06d}"
    assert [name for name in os.listdir(callback.folder) if not name.startswith("round-")] == []


def test_the_best_checkpoint_has_the_best_value(tmp_path):
    trainer = trainer_of()
    restored = trainer_of()
    callback = Checkpoint(tmp_path, every=3, keep=1, best="val_loss")
    fit(trainer, EarlyStopping("val_accuracy", patience=9), callback, num_epochs=6, **VALIDATION)
    losses = [record["val_loss"] for record in trainer.history]
    assert callback.best_round == losses.index(min(losses))
    restored.restore(tmp_path, best=True)
    assert restored.evaluate(X[:20], Y[:20])["loss"] == min(losses)
    assert len(restored.history) == callback.best_round + 1


def test_the_best_of_all_fits_of_a_run_is_kept(tmp_path):
    trainer = trainer_of()
    callback = Checkpoint(tmp_path, keep=2, best="loss", mode="max")
    fit(trainer, callback, num_epochs=2)
    fit(trainer, callback, num_epochs=3)
    assert callback.best_round == 0
    assert list(list_checkpoints(tmp_path)) == [0, 3, 4]
    another = trainer_of()
    fit(another, elsewhere := Checkpoint(tmp_path / "other", keep=1), num_epochs=3)
    elsewhere.best = "loss"  # what was kept until now has a best, too
    fit(another, elsewhere, num_epochs=1)
    assert (elsewhere.best_round, list(list_checkpoints(tmp_path / "other"))) == (3, [3])


@pytest.mark.parametrize("interrupted", [3, 4, 5])
def test_each_of_two_resumed_callbacks_keeps_its_best(tmp_path, interrupted):
    class Scores(Callback):
        def on_round_end(self, trainer, record):
            record["score"] = [0.1, 0.2, 0.9, 0.3, 0.4, 0.5][record["round"]]

    def callbacks():
        return (
            Scores(),
            Checkpoint(tmp_path / "a"),
            Checkpoint(tmp_path / "b", keep=1, best="score", mode="max"),
        )

    with pytest.raises(KeyboardInterrupt):
        fit(trainer_of(), *callbacks(), InterruptAt(interrupted), num_epochs=6)
    trainer = trainer_of()
    fit(trainer, *(again := callbacks()), resume=True, num_epochs=6)
    assert again[2].best_round == 2
    assert list(list_checkpoints(tmp_path / "b")) == [2, 5]
    trainer.restore(tmp_path / "b", best=True)
    assert len(trainer.history) == 3


def test_restoring_the_best_needs_a_checkpoint_with_best(tmp_path):
    fit(trainer := trainer_of(), EarlyStopping("loss"), Checkpoint(tmp_path))
    with pytest.raises(ValueError, match="records no best round"):
        trainer.restore(tmp_path, best=True)


@pytest.mark.parametrize(
    ("name", "value"), [("every", 0), ("keep", 0), ("every", 1.5), ("keep", True)]
)
def test_invalid_counts_are_errors(name, value):
    with pytest.raises(ValueError, match=f"{name}={value}: give an integer of at least 1"):
        Checkpoint("x", **{name: value})


def test_damage_to_the_newest_history_leaves_a_good_checkpoint(tmp_path):
    trainer = ScriptedTrainer()
    callback = Checkpoint(tmp_path)
    trainer.run(callback, [0.5] * 20)
    before, newest = (
        sorted(path.glob("history-*")) for path in list_checkpoints(tmp_path).values()
    )
    assert [path.stat().st_nlink for path in (*before, *newest)] == [1] * len([*before, *newest])
    for path in newest:
        path.write_bytes(b"damaged")
    with pytest.warns(
        UserWarning, match=r"round-000019 .* is damaged.*; using .*round-000018 instead"
    ):
        path, content = read_latest_checkpoint(tmp_path, warn=True)
    assert content["history"] == trainer.history[:19]


class AsksAtStart(Callback):
    """Notes how much space a checkpoint needs, before there is one."""

    def on_fit_start(self, trainer, total_samples):
        self.asked = trainer.checkpoint_bytes()


SIZED = {
    "plain SGD": (PLAIN_SGD, {}),
    "momentum": ({**PLAIN_SGD, "momentum": 0.9}, {}),
    "Adam": (ADAM, {}),
    "averaged moments": (ADAM, {"merge": Merge(optimizer_state="average")}),
    "three moments": ({**ADAM, "amsgrad": True}, {"num_epochs": 2}),
}


@pytest.mark.parametrize("name", SIZED)
def test_the_space_that_is_asked_for_is_that_of_a_checkpoint(tmp_path, name):
    optimizer, options = SIZED[name]
    trainer = trainer_of(net=lambda: nn.Linear(6, 4000), optimizer=optimizer)
    at_start = AsksAtStart()
    for _ in range(2):  # then workers have states, and there is a history
        fit(trainer, at_start, kept := Checkpoint(tmp_path, keep=1), **options)
        size = sum(path.stat().st_size for path in kept.path.iterdir())
        assert size <= at_start.asked <= size + 2**17, (size, at_start.asked)
        assert size > 4000 * 7 * 4


@pytest.fixture(params=["memory", "s3"])
def store(request, monkeypatch):
    """The name of an empty folder in an object store: of this process, or of a server."""
    fsspec = pytest.importorskip("fsspec")
    if request.param == "memory":
        yield "memory://bucket/run"
        fsspec.filesystem("memory").rm("/bucket", recursive=True)
        return
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "us-east-1")
    address, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{address}:{port}")
    pytest.importorskip("s3fs").S3FileSystem.clear_instance_cache()
    fsspec.filesystem("s3").mkdir("bucket")
    yield "s3://bucket/run"
    # Servers of a process share what they store.
    fsspec.filesystem("s3").rm("bucket", recursive=True)
    server.stop()


def test_a_fit_resumes_from_an_object_store(store):
    whole = trainer_of()
    first = trainer_of()
    second = trainer_of()
    fit(whole, **VALIDATION)
    with pytest.raises(KeyboardInterrupt):
        fit(first, Checkpoint(store, best="val_loss"), InterruptAt(2), resume=True, **VALIDATION)
    system, path = locations.file_system(store)
    system.rm(f"{path}/round-000001/state.json")  # as if its upload had been cut
    with pytest.warns(UserWarning, match=r"round-000001 .*; using .*round-000000 instead"):
        fit(second, again := Checkpoint(store, best="val_loss"), resume=True, **VALIDATION)
    assert_alike(second, whole)
    assert len(second.history) == 3
    kept = {f"round-{number:06d}" for number in (1, 2, again.best_round)}
    assert {name.rpartition("/")[2] for name in system.ls(path, detail=False)} == kept
    with pytest.raises(FileExistsError, match=f"{store} has checkpoints of another run"):
        fit(trainer_of(), Checkpoint(store), num_epochs=1)
    system.pipe(f"{path}/notes/of the user.txt", b"kept")
    fit(trainer_of(), Checkpoint(store, overwrite=True), num_epochs=1)
    assert {name.rpartition("/")[2] for name in system.ls(path, detail=False)} == {
        "notes",
        "round-000000",
    }


@pytest.mark.parametrize("store", ["memory"], indirect=True)
def test_uploads_do_not_grow_with_the_history(store, monkeypatch):
    """Which files are uploaded is decided before any store is asked."""
    monkeypatch.setattr(shared_history, "LONGEST", 4)
    trainer = ScriptedTrainer()
    callback = Checkpoint(store)
    uploaded = []
    system, _ = locations.file_system(store)
    put = system.put_file

    def counted(local, remote):
        uploaded[-1] += os.path.getsize(local) if "history" in local else 0
        put(local, remote)

    monkeypatch.setattr(system, "put_file", counted)
    upload = RemoteFolder.upload
    monkeypatch.setattr(RemoteFolder, "upload", lambda *args: [uploaded.append(0), upload(*args)])
    trainer.run(callback, [0.5] * 33)
    # Every other checkpoint shares files; in turn they have 2 new records, or merge 4.
    assert sum(uploaded[29:33]) == 12 * len(line_of(trainer.history[-1]))
    with local_copy(store) as copy:
        assert read_latest_checkpoint(copy)[1]["history"] == trainer.history


def test_checkpoints_of_an_object_store_are_restored_resumed_and_loaded(store):
    trainer, best, resumed, again = (trainer_of() for _ in range(4))
    fit(trainer, kept := Checkpoint(store, best="val_loss", mode="max"), num_epochs=2, **VALIDATION)
    again.restore(store)
    assert_alike(again, trainer)
    best.restore(store, best=True)
    assert len(best.history) == kept.best_round + 1
    fit(resumed, resume=f"{store}/", num_epochs=2, **VALIDATION)
    assert_alike(resumed, trainer)
    net = load(f"{store}/round-000001", trainer.model())
    assert_same_bits(parameters.from_module(net), trainer.get_parameters())
    with pytest.raises(FileNotFoundError, match=f"{store}s does not exist"):
        again.restore(f"{store}s")
    with pytest.raises(TypeError, match="give load"):
        load(store)
    with pytest.raises(ValueError, match=f"cannot save to {store}.npz; .* a local folder"):
        trainer.save(f"{store}.npz")
