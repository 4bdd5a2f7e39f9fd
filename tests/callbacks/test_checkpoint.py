"""The callback that writes checkpoints: which rounds are saved and kept."""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compss_train.callbacks import Callback, Checkpoint, EarlyStopping, Report
from compss_train.data import locations
from compss_train.training import checkpoints as storage
from compss_train.training.checkpoints import list_checkpoints
from compss_train.training.training_state import Snapshot
from tests.helpers.callbacks import InterruptAt
from tests.helpers.models import SGD, mlp
from tests.helpers.small_fits import X, Y, assert_alike, fit, trainer_of

VALIDATION = {"validation_data": (X[:20], Y[:20])}


class ScriptedTrainer:
    """A trainer with only a history."""

    num_workers, resumed_from, stopping = 1, None, None

    def __init__(self):
        self.history = []

    def get_parameters(self):
        return {}

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


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 5), min_size=1, max_size=9), st.integers(1, 4), st.integers(1, 3), st.booleans())
def test_due_checkpoints_are_written_and_the_latest_and_best_kept(tmp_path_factory, values, every, keep, best):
    callback = Checkpoint(tmp_path_factory.mktemp("it"), every, keep, "loss" if best else None)
    there = ScriptedTrainer().run(callback, values)
    written, best_round = [], None
    for number, value in enumerate(values):
        is_best = best and (best_round is None or value < values[best_round])
        best_round = number if is_best else best_round
        if is_best or (number + 1) % every == 0:
            written = [*written, number]
        kept = sorted({*written[-keep:], *([] if best_round is None else [best_round])} & {*written})
        assert there[number] == kept
    last = len(values) - 1
    newest = sorted({*written, last})[-keep:]
    assert there[-1] == sorted({*newest, *([] if best_round is None else [best_round])})
    assert callback.best_round == best_round
    assert callback.path == callback.folder / f"round-{last:06d}"
    assert [name for name in os.listdir(callback.folder) if not name.startswith("round-")] == []


def test_the_best_checkpoint_has_the_best_value(tmp_path):
    trainer, restored = trainer_of(), trainer_of()
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
        return Scores(), Checkpoint(tmp_path / "a"), Checkpoint(tmp_path / "b", keep=1, best="score", mode="max")

    with pytest.raises(KeyboardInterrupt):
        fit(trainer_of(), *callbacks(), InterruptAt(interrupted), num_epochs=6)
    trainer = trainer_of()
    fit(trainer, *(again := callbacks()), resume=True, num_epochs=6)
    assert again[2].best_round == 2
    assert list(list_checkpoints(tmp_path / "b")) == [2, 5]
    trainer.restore(tmp_path / "b", best=True)
    assert len(trainer.history) == 3


def test_the_second_of_two_folders_may_be_ahead(tmp_path):
    def both():
        return Checkpoint(tmp_path / "seldom", every=3), Checkpoint(tmp_path / "often", keep=1)

    with pytest.raises(KeyboardInterrupt):
        fit(trainer_of(), *both(), InterruptAt(5), num_epochs=6)
    assert os.listdir(tmp_path / "seldom") == ["round-000002"]
    assert os.listdir(tmp_path / "often") == ["round-000004"]
    fit(trainer_of(), *both(), resume=True, num_epochs=6)
    assert os.listdir(tmp_path / "often") == ["round-000005"]


def test_a_failed_checkpoint_is_not_the_latest(tmp_path, monkeypatch):
    class Breaking(Callback):
        def on_round_end(self, trainer, record):
            if record["round"] == 1:
                monkeypatch.setattr(storage, "write_state", None)

    callback = Checkpoint(tmp_path)
    with pytest.raises(TypeError):
        fit(trainer_of(), Breaking(), callback)
    assert callback.path == tmp_path / "round-000000"
    assert Checkpoint(tmp_path).path is None


@pytest.mark.parametrize("keep", [1, 9])
def test_each_of_two_folders_has_its_own_best(tmp_path, keep):
    """Also where the best round of one is kept in the other, too."""
    lowest, highest = tmp_path / "lowest", tmp_path / "highest"
    both = (
        Checkpoint(highest, keep=keep, best="val_loss", mode="max"),
        Checkpoint(lowest, keep=keep, best="val_loss"),
    )
    trainer = trainer_of()
    fit(trainer, *both, num_epochs=4, **VALIDATION)
    for folder, number in ((lowest, 3), (highest, 0)):
        trainer.restore(folder, best=True)
        assert trainer.history[-1]["round"] == number
    trainer.restore(lowest.rename(tmp_path / "moved"), best=True)  # of either


def test_restoring_the_best_needs_a_checkpoint_with_best(tmp_path):
    fit(trainer := trainer_of(), EarlyStopping("loss"), Checkpoint(tmp_path))
    with pytest.raises(ValueError, match="records no best round"):
        trainer.restore(tmp_path, best=True)


def test_a_resumed_fit_with_another_field_finds_its_best_round(tmp_path):
    fit(trainer_of(), EarlyStopping("loss"), Checkpoint(tmp_path, best="loss"), num_epochs=2, **VALIDATION)
    stopping = EarlyStopping("val_loss", mode="max", patience=9)
    checkpoint = Checkpoint(tmp_path, keep=1, best="val_loss", mode="max")
    fit(trainer := trainer_of(), stopping, checkpoint, resume=True, num_epochs=4, **VALIDATION)
    losses = {record["round"]: record["val_loss"] for record in trainer.history}
    assert checkpoint.best_round == max(losses, key=losses.get) == 0
    assert list(list_checkpoints(tmp_path)) == [0, 3]
    assert stopping.best_round == 2  # it begins anew
    assert stopping.best == max(losses[2], losses[3])


def test_build_resets_the_rounds(tmp_path):
    fit(trainer_of(), Checkpoint(tmp_path), num_epochs=4)
    stopping = EarlyStopping("loss", mode="max", patience=1)
    fit(trainer := trainer_of(), stopping, resume=tmp_path, num_epochs=6)
    assert (trainer.resumed_from, trainer.stopped) != (None, None)
    trainer.build(mlp(), SGD, "cross_entropy")
    assert (trainer.resumed_from, trainer.stopped) == (None, None)
    assert trainer.snapshot().progress is None


def test_an_error_of_the_checkpoint_folder_leaves_the_report(tmp_path):
    page = tmp_path / "report.html"
    fit(trainer_of(), Checkpoint(tmp_path / "checkpoints"), Report(page))
    before = page.read_bytes()
    with pytest.raises(FileExistsError):
        fit(trainer_of(), Report(page), Checkpoint(tmp_path / "checkpoints"))
    assert page.read_bytes() == before


def test_a_name_that_safetensors_could_not_read_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="is not valid UTF-8, and safetensors could not read it"):
        fit(trainer_of(), Checkpoint(tmp_path / os.fsdecode(b"run-\xe9")))


@pytest.mark.parametrize(("name", "value"), [("every", 0), ("keep", 0), ("every", 1.5), ("keep", True)])
def test_invalid_counts_are_errors(name, value):
    with pytest.raises(ValueError, match=f"{name}={value}: give an integer of at least 1"):
        Checkpoint("x", **{name: value})


def test_rounds_without_a_snapshot_need_no_state():
    assert [Checkpoint("x", 3).needs_state(number) for number in range(6)] == [False, False, True] * 2
    assert all(Checkpoint("x", 3, best="loss").needs_state(number) for number in range(6))


@pytest.fixture(params=["memory", "s3"])
def store(request, monkeypatch):
    """The name of an empty folder in an object store: of this process, or of a server."""
    fsspec = pytest.importorskip("fsspec")
    if request.param == "memory":
        yield "memory://bucket/run"
        fsspec.filesystem("memory").store.clear()
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
    server.stop()


def test_a_fit_resumes_from_an_object_store(store):
    whole, first, second = trainer_of(), trainer_of(), trainer_of()
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
    assert {name.rpartition("/")[2] for name in system.ls(path, detail=False)} == {"notes", "round-000000"}
