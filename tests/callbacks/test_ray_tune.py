"""``RayTune``: what trials report, and how they go on; and searches with Ray Tune itself."""

import shutil
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from compss_train.callbacks import RayTune, ray_tune
from tests.helpers.callbacks import InterruptAt
from tests.helpers.models import mlp
from tests.helpers.processes import python_blocks
from tests.helpers.small_fits import PLAIN_SGD, assert_alike, fit, trainer_of


class Tune:
    """Ray Tune, as a trial sees it."""

    trial = "trial"

    def __init__(self, folder):
        self._folder = folder
        self.reported = []
        self.checkpoint = None
        self.Checkpoint = SimpleNamespace(from_directory=lambda source: source)

    def get_context(self):
        return SimpleNamespace(get_trial_id=lambda: self.trial)

    def get_checkpoint(self):
        return self.checkpoint

    def report(self, metrics, checkpoint):
        self.reported.append((metrics, checkpoint is not None))
        if checkpoint is not None:
            copy = self._folder / str(len(self.reported))
            shutil.copytree(checkpoint, copy)
            self.checkpoint = SimpleNamespace(as_directory=lambda: nullcontext(copy))


@pytest.fixture
def tune(tmp_path, monkeypatch):
    fake = Tune(tmp_path)
    monkeypatch.setattr(ray_tune, "import_optional", lambda *_, **__: fake)
    return fake


def test_each_round_is_reported_and_some_with_a_checkpoint(tune):
    trainer = trainer_of(net=mlp)
    fit(trainer, RayTune(every=2), num_epochs=5, resume=True)
    assert [has_checkpoint for _, has_checkpoint in tune.reported] == [False, True] * 2 + [False]
    for number, (metrics, _) in enumerate(tune.reported):
        record = trainer.history[number]
        assert metrics["round"] == number
        assert {metrics[name] == record[name] for name in ("loss", "accuracy", "epoch")} == {True}
        assert metrics["samples_per_second"] == record["samples_per_second"]


def test_a_trial_goes_on_from_its_checkpoint(tune):
    whole = trainer_of(net=mlp)
    fit(whole, RayTune(), num_epochs=4, resume=True)
    tune.checkpoint = None
    with pytest.raises(KeyboardInterrupt):
        fit(trainer_of(net=mlp), RayTune(), InterruptAt(1), num_epochs=4, resume=True)
    resumed = trainer_of(net=mlp)
    fit(resumed, RayTune(), num_epochs=4, resume=True)
    assert_alike(resumed, whole)
    with pytest.raises(FileExistsError, match="call fit with resume=True"):
        fit(trainer_of(net=mlp), RayTune(), num_epochs=4)


def test_a_trial_takes_over_from_another_with_a_learning_rate_of_its_own(tune):
    donor = trainer_of(net=mlp, optimizer=PLAIN_SGD)
    before = fit(donor, RayTune(), num_epochs=2, resume=True)
    still = trainer_of(net=mlp, optimizer={**PLAIN_SGD, "lr": 1e-30})
    with pytest.warns(UserWarning, match="lr was 0.1, and is 1e-30"):
        after = fit(still, RayTune(), num_epochs=4, resume=True)
    assert [record["round"] for record in still.history] == [0, 1, 2, 3]
    assert all((before[name] == after[name]).all() for name in before)


def test_outside_of_a_trial_it_is_an_error(tune, raises):
    tune.trial = None
    with raises(RuntimeError, "tune.Tuner(function)"):
        RayTune()


PBT = """
from ray.tune.schedulers import PopulationBasedTraining
scheduler = PopulationBasedTraining(
    time_attr="training_iteration",
    perturbation_interval=5,
    hyperparam_mutations={"lr": tune.loguniform(1e-4, 1e-1)},
    quantile_fraction=0.5,
    synch=True,
)
settings = tune.TuneConfig(metric="val_loss", mode="min", scheduler=scheduler)
space = {"lr": tune.grid_search([0.03, 1e-8]), "width": 32}
results = tune.Tuner(
    tune.with_resources(trial, {"cpu": 1}), param_space=space, tune_config=settings
).fit()
for result in results:
    print("ended", result.metrics["round"], result.config["lr"] > 1e-7)
"""


@pytest.mark.slow  # processes of Ray Tune start for minutes on a busy machine
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("shared_ray")
@pytest.mark.filterwarnings("ignore")
def test_searches_stop_trials_and_let_them_take_over(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # where Tune keeps its results
    page = "docs/ray-tune.md"
    (block,) = python_blocks(page)
    names = {"__name__": "trials"}
    exec(compile(block, page, "exec"), names)
    assert "{'lr': 0.03" in capsys.readouterr().out
    exec(compile(PBT, "PBT", "exec"), names)
    assert capsys.readouterr().out.count("ended 7 True") == 2
