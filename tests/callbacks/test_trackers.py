"""Trackers: what MLflow and Weights & Biases have of a fit, and fits whose tracker fails."""

import copy
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings, strategies

from compss_train.callbacks import MLflow, TensorBoard, WandB
from compss_train.callbacks.trackers import MAX_VALUE, MOST_PARAMETERS, _Tracker
from compss_train.model import parameters
from tests.helpers.callbacks import StopAfter
from tests.helpers.models import assert_same_bits
from tests.helpers.small_fits import PLAIN_SGD as SGD
from tests.helpers.small_fits import fit, trainer_of

pytestmark = pytest.mark.filterwarnings(  # of the trackers' own dependencies
    "ignore::DeprecationWarning",
    "ignore::ResourceWarning",
    "ignore::FutureWarning",
    "ignore::pytest.PytestWarning",
)


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """The current folder, where MLflow keeps artifacts, and the folder where W&B does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path))


@pytest.fixture(scope="module")
def mlflow_store(tmp_path_factory):
    """A database, or files where only MLflow's small package is installed."""
    pytest.importorskip("mlflow")
    folder = tmp_path_factory.mktemp("mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        yield f"sqlite:///{folder}/mlflow.db" if find_spec("sqlalchemy") else f"file://{folder}"


def mlflow_run(store, tracker):
    from mlflow import MlflowClient

    client = MlflowClient(store)
    run = client.get_run(tracker.run_id)
    steps = {
        name: client.get_metric_history(tracker.run_id, name)
        for name in ("loss", "accuracy", "epoch")
    }
    return run, {
        name: [(each.step, each.value) for each in history] for name, history in steps.items()
    }


def artifact(store, tracker, name=""):
    from mlflow import MlflowClient

    return Path(MlflowClient(store).download_artifacts(tracker.run_id, name))


def test_mlflow_has_every_round_and_the_settings(mlflow_store):
    trainer = trainer_of(optimizer=SGD)
    tracker = MLflow("small", run_name="a", tracking_uri=mlflow_store)
    fit(trainer, tracker)
    fit(trainer, copy.deepcopy(tracker), num_epochs=1)  # a second fit goes on in the same run
    run, steps = mlflow_run(mlflow_store, tracker)
    assert (run.info.run_name, run.info.status) == ("a", "FINISHED")
    assert run.data.params["build.optimizer.arguments.lr"] == "0.1"
    for name, values in steps.items():
        assert values == [(record["round"], record[name]) for record in trainer.history]
    folder = artifact(mlflow_store, tracker)
    saved = parameters.load(folder / "parameters.safetensors")
    final = trainer.get_parameters()
    assert_same_bits({name: saved[name] for name in final}, final)
    assert (folder / "report.html").read_text().count("</html>") == 1


def test_mlflow_has_all_of_many_and_of_long_settings(mlflow_store):
    tracker = MLflow(tracking_uri=mlflow_store)
    settings = {f"fit.option{number}": str(number) for number in range(3 * MOST_PARAMETERS + 1)}
    text = "Linear()\n" * 99
    configuration = {
        "fit": {name.removeprefix("fit."): value for name, value in settings.items()},
        "net": text,
    }
    tracker.on_fit_start(SimpleNamespace(configuration=configuration, history=[]), None)
    assert mlflow_run(mlflow_store, tracker)[0].data.params == {**settings, "net": text[:MAX_VALUE]}
    assert artifact(mlflow_store, tracker, "settings/net.txt").read_text() == text


def test_mlflow_gets_names_of_other_characters(mlflow_store):
    sgd = {**SGD, "groups": {"*.bias": {"lr": 0.01}}}
    trainer = trainer_of(optimizer=sgd, metric={"top-1 (%)": "accuracy"})
    tracker = MLflow(tracking_uri=mlflow_store)
    fit(trainer, tracker, num_epochs=1)
    data = mlflow_run(mlflow_store, tracker)[0].data
    assert {"0.01"} == {
        value for name, value in data.params.items() if name.endswith("groups._.bias.lr")
    }
    assert data.metrics["top-1 ___"] == trainer.history[-1]["top-1 (%)"]


def test_mlflow_logs_to_the_active_run_and_leaves_it_open(mlflow_store, monkeypatch):
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_store)
    mlflow.set_tracking_uri(mlflow_store)
    with mlflow.start_run() as active:
        tracker = MLflow()
        fit(trainer_of(), tracker, num_epochs=1)
        assert tracker.run_id == active.info.run_id
        assert mlflow_run(mlflow_store, tracker)[0].info.status == "RUNNING"
    mlflow.set_tracking_uri(None)


@pytest.mark.parametrize(
    "again", [lambda tracker: tracker, lambda tracker: type(tracker)("nested")]
)
def test_mlflow_nests_the_runs_of_other_fits_in_the_active_one(mlflow_store, monkeypatch, again):
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_store)
    mlflow.set_tracking_uri(mlflow_store)
    with mlflow.start_run() as active:
        tracker = MLflow("nested")
        fit(trainer_of(), tracker, num_epochs=1)
        second = again(tracker)
        trainer = trainer_of(optimizer={**SGD, "lr": 0.01})
        fit(trainer, second, num_epochs=1)
        nested = second.run_id
        run, _ = mlflow_run(mlflow_store, second)
        assert run.info.status == "FINISHED"
        fit(trainer, second, num_epochs=1)  # it goes on
    run, steps = mlflow_run(mlflow_store, second)
    mlflow.set_tracking_uri(None)
    assert second.run_id == nested != active.info.run_id
    assert run.data.tags["mlflow.parentRunId"] == active.info.run_id
    assert run.info.experiment_id == active.info.experiment_id
    assert run.data.params["build.optimizer.arguments.lr"] == "0.01"
    assert steps["loss"] == [(record["round"], record["loss"]) for record in trainer.history]


def test_failed_fits_are_failed_runs(mlflow_store):
    class Failing(StopAfter):
        def on_round_end(self, trainer, record):
            raise ZeroDivisionError

    tracker = MLflow(tracking_uri=mlflow_store)
    with pytest.raises(ZeroDivisionError):
        fit(trainer_of(), tracker, Failing(0))
    run, steps = mlflow_run(mlflow_store, tracker)
    assert (run.info.status, len(steps["loss"])) == ("FAILED", 1)


@pytest.mark.slow  # it takes seconds to import
def test_weights_and_biases_has_the_numbers_of_the_round(tmp_path):
    wandb = pytest.importorskip("wandb")
    with wandb.init(
        project="small", mode="offline", dir=tmp_path, settings=wandb.Settings(silent=True)
    ) as run:
        trainer = trainer_of(optimizer=SGD)
        tracker = WandB()
        for number in range(10):  # of the program, whose steps are beyond the fit's rounds
            run.log({"preprocessing": number})
        fit(trainer, tracker)
        assert tracker.run_id == run.id
        assert run.summary["loss"] == trainer.history[-1]["loss"]
        assert run.summary["round"] == trainer.history[-1]["round"]
        assert run.config["build"]["optimizer"]["arguments"]["lr"] == 0.1
        staged = [
            path
            for path in tmp_path.rglob("*")
            if path.is_file() and b"</html>" in path.read_bytes()
        ]
        assert len(staged) == 1


@pytest.mark.slow  # it takes seconds to import
def test_weights_and_biases_ends_a_run_of_its_own(tmp_path):
    wandb = pytest.importorskip("wandb")
    tracker = WandB("small", mode="offline", dir=tmp_path, settings=wandb.Settings(silent=True))
    fit(trainer_of(), tracker, num_epochs=1)
    assert wandb.run is None
    assert list(tmp_path.glob(f"wandb/offline-run-*-{tracker.run_id}"))


@pytest.mark.slow  # it takes seconds to import
def test_weights_and_biases_mixes_no_fits_in_a_run(tmp_path):
    wandb = pytest.importorskip("wandb")
    silent = {"mode": "offline", "dir": tmp_path, "settings": wandb.Settings(silent=True)}
    tracker = WandB("small", **silent)
    ids = []
    for _ in range(2):
        trainer = trainer_of()
        for _ in range(2):  # the second one goes on
            fit(trainer, tracker, num_epochs=1)
            ids.append(tracker.run_id)
    first, second, third, fourth = ids
    assert first == second != third == fourth
    tracker = WandB("small", id="fixed", **silent)
    fit(trainer_of(), tracker, num_epochs=1)
    with pytest.raises(ValueError, match="id='fixed'"):
        fit(trainer_of(), tracker, num_epochs=1)
    with wandb.init(project="small", **silent):
        trainer = trainer_of()
        fit(trainer, WandB(), num_epochs=1)
        fit(trainer, WandB(), num_epochs=1)
        with pytest.raises(ValueError, match="rounds of another fit, up to 1"):
            fit(trainer_of(), WandB(), num_epochs=1)


class Recording(_Tracker):
    """Keeps what is logged by run, as a tracker would."""

    package = "json"

    def __init__(self):
        super().__init__()
        self.runs = {}

    def __deepcopy__(self, memo):  # all copies log to the same tracker
        copied = copy.copy(self)
        memo[id(self)] = copied
        return copied

    def _start(self, configuration, rounds):
        name = self.run_id or f"run {len(self.runs)}"
        self.runs.setdefault(name, [])
        return name

    def _log(self, numbers, record):
        self.runs[self.run_id].append(record)

    def _end(self, succeeded):
        pass


@given(strategies.lists(strategies.sampled_from(["build", "fit", "untracked", "copy", "other"])))
@settings(max_examples=25, deadline=None)
def test_a_run_has_the_rounds_of_one_history(steps):
    """Whatever is built, fitted and copied: no run goes back, and no history is cut."""
    tracker = Recording()
    trainers = [trainer_of(), trainer_of()]
    histories = []
    for step in steps:
        if step == "build":
            trainers[0] = trainer_of()
        elif step == "other":
            trainers.reverse()
        elif step == "copy":
            tracker = copy.deepcopy(tracker)
        else:
            fit(trainers[0], *([tracker] if step == "fit" else []), num_epochs=1)
            histories.append(list(trainers[0].history))
    for logged in tracker.runs.values():
        numbers = [record["round"] for record in logged]
        assert numbers == sorted(set(numbers))
        assert any(all(record in history for record in logged) for history in histories)
    assert sum(map(len, tracker.runs.values())) == steps.count("fit")


class Broken(_Tracker):
    package = "json"

    def __init__(self):
        super().__init__()
        self.logged = []

    def _start(self, configuration, rounds):
        return "mine" if self.run_id is None else f"{self.run_id} again"

    def _log(self, numbers, record):
        self.logged.append(record["round"])
        if record["round"] == 1:
            raise ConnectionError("no route")

    def _end(self, succeeded):
        self.logged.append(succeeded)


def test_a_tracker_that_fails_does_not_end_the_fit():
    tracker = Broken()
    with pytest.warns(
        UserWarning, match=("Broken stops logging this fit: ConnectionError: no route")
    ) as caught:
        fit(trainer_of(), tracker)
    assert len(caught) == 1
    assert tracker.logged == [0, 1, True]


def test_an_upload_that_fails_leaves_no_run_open(mlflow_store, monkeypatch):
    def refuse(*arguments):
        raise ConnectionError("no route")

    tracker = MLflow(tracking_uri=mlflow_store)
    monkeypatch.setattr(tracker, "_log_files", refuse)
    with pytest.warns(
        UserWarning, match=("not upload the final parameters and the report: .*: no route")
    ) as caught:
        fit(trainer_of(), tracker, num_epochs=1)
    assert len(caught) == 1
    assert mlflow_run(mlflow_store, tracker)[0].info.status == "FINISHED"


def test_resumed_fits_go_on_in_the_same_run():
    tracker = Broken()
    other = Broken()
    fit(trainer_of(), tracker, num_epochs=1)
    other.load_state_dict(tracker.state_dict())
    fit(trainer_of(), other, num_epochs=1)
    assert (tracker.run_id, other.run_id) == ("mine", "mine again")
    assert Broken().state_dict() == {}


@pytest.mark.parametrize(
    ("kind", "extra"),
    [(MLflow, "mlflow"), (WandB, "wandb"), (partial(TensorBoard, "board"), "tensorboard")],
)
def test_without_its_package_a_tracker_names_the_extra(kind, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, extra, None)
    with pytest.raises(ModuleNotFoundError, match=rf"pip install 'compss_train\[{extra}\]'"):
        kind()
