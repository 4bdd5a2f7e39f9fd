"""The subcommand fit: runs, their folders, and resuming."""

import os
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

import compss_train
from compss_train import BlockedTensor, DistributedTrainer
from compss_train._utils.files import FolderLock
from compss_train.cli.run_files.data import Dataset, split_validation
from compss_train.model import parameters
from tests.cli.conftest import RUN_FILE
from tests.cli.user_objects import USER_OBJECTS, data, history, weighted
from tests.helpers.models import SGD, assert_same_bits, mlp
from tests.helpers.processes import ROOT

NETWORK = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x)
"""


def saved(folder):
    arrays = parameters.load(folder / "parameters.safetensors")
    return {name: arrays[name] for name in sorted(arrays)}


@pytest.mark.parametrize("samples", [data, weighted])
def test_a_run_equals_the_same_calls_of_the_library(run_file, command, samples):
    settings = [
        "fit.progress=true",
        f"data.import={USER_OBJECTS}:{samples.__name__}",
        "build.class_weight=[1, 2, 0.5]",
    ]
    done = command("fit", run_file, settings=settings)
    folder = run_file.parent / "runs" / "small"
    dataset = Dataset(*(BlockedTensor.from_array(part, (4, 1)) for part in samples()))
    training, validation = split_validation(dataset, 0.25, seed=3)
    options = {
        "num_epochs": 3,
        "batch_size": 8,
        "progress": False,
        "sample_weight": training.weight,
    }
    with DistributedTrainer(2, engine="serial", seed=3, threads=1) as trainer:
        trainer.build(mlp(), SGD, "cross_entropy", "accuracy", class_weight=[1, 2, 0.5])
        expected = trainer.fit(training.x, training.y, validation_data=validation[:2], **options)
        measured = trainer.evaluate(*validation[:2])
    assert_same_bits(saved(folder), {name: expected[name] for name in sorted(expected)})
    records = history(folder)
    assert [record["round"] for record in records] == [0, 1, 2]
    assert records[-1]["val_accuracy"] == measured["accuracy"]
    assert f"val accuracy {measured['accuracy']:.4f}" in done.out
    assert "3 epochs in 3 rounds, 2 workers" in done.out
    assert "in runs/small: parameters.safetensors, history.jsonl" in done.out
    assert done.err.count("round ") == 3


@pytest.mark.parametrize("seed", ["seed = 3\n", ""], ids=["given", "drawn"])
def test_the_saved_run_file_repeats_the_run_from_any_folder(
    run_file, command, tmp_path, monkeypatch, seed
):
    run_file.write_text(run_file.read_text().replace("seed = 3\n", seed))
    command(
        "fit", run_file, "--workers", 1, settings=["fit.num_epochs=2", "build.optimizer.lr=0.1"]
    )
    folder = tmp_path / "runs" / "small"
    table = tomllib.loads((folder / "config.toml").read_text())
    assert table["fit"]["num_epochs"] == 2
    assert table["build"]["optimizer"] == {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9}
    assert table["trainer"]["num_workers"] == 1
    assert isinstance(table["trainer"]["seed"], int)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    command("fit", folder, "--output", "again")
    assert_same_bits(saved(elsewhere / "again"), saved(folder))


def test_a_run_resumes_in_a_folder_that_was_moved(run_file, command, tmp_path):
    command("fit", run_file, "--set", "fit.num_epochs=2", "--output", "first")
    (tmp_path / "first").rename(tmp_path / "moved")
    assert "moved holds a run" in command("fit", "moved", code=2).err
    command("fit", "moved", "--resume", "--set", "fit.num_epochs=3")
    assert [record["round"] for record in history(tmp_path / "moved")] == [0, 1, 2]
    assert not (tmp_path / "first").exists()
    config = tmp_path / "moved" / "config.toml"
    text = config.read_text().replace(f'home = "{tmp_path}"', 'home = "/nowhere/at/all"')
    config.write_text(text.replace('source = "small.toml"\n', ""))
    error = command("fit", "moved", "--resume", code=2).err
    assert "its home folder /nowhere/at/all does not exist; correct the key home" in error


@pytest.fixture
def submitted(tmp_path, monkeypatch, command):
    """The folder of a run that was trained in copies of its files, which are gone."""
    project = tmp_path / "project"
    project.mkdir()
    text = RUN_FILE.replace("tests.helpers.models:mlp", "submitted_network:Net")
    (project / "small.toml").write_text(text)
    (project / "submitted_network.py").write_text(NETWORK)
    output = tmp_path / "output"
    for flags in ((), ("--resume",)):  # each is a copy of its own
        copy = tmp_path / f"copy{len(flags)}"
        shutil.copytree(project, copy)
        monkeypatch.chdir(copy)
        command("fit", "small.toml", "--output", output, *flags)
        monkeypatch.chdir("/")
        shutil.rmtree(copy)
        sys.modules.pop("submitted_network")
    return output


def test_a_run_in_a_temporary_copy_is_used_from_its_folder(
    submitted, command, tmp_path, monkeypatch
):
    error = command("evaluate", submitted, code=2).err
    assert f"its home folder {tmp_path}/copy1 does not exist. Run the command" in error
    assert "in the folder that has small.toml" in error
    monkeypatch.chdir(tmp_path / "project")
    done = command("evaluate", submitted)
    assert "accuracy" in done.out
    assert f"files are those of {tmp_path}/project, which has small.toml" in done.err
    assert isinstance(compss_train.load(submitted), torch.nn.Module)
    command("fit", submitted, "--output", "again")
    assert_same_bits(saved(tmp_path / "project" / "again"), saved(submitted))


def test_the_folder_of_another_user_is_not_taken_for_that_of_a_run(
    submitted, command, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setattr(os, "getuid", lambda: os.stat(submitted).st_uid + 1)
    monkeypatch.setattr("compss_train.cli.run_files.ADMINISTRATOR", -1)
    error = command("fit", submitted, "--output", "again", code=2).err
    assert f"{tmp_path}/project belongs to another user; correct the key home" in error


@pytest.mark.parametrize("engine", ["serial", pytest.param("local", marks=pytest.mark.slow)])
def test_modules_and_files_next_to_the_run_file_are_found(
    run_file, command, tmp_path, monkeypatch, engine
):
    x, y = data()
    np.save("x.npy", x)
    np.save("y.npy", y)
    Path(f"network_of_{engine}.py").write_text(NETWORK)
    text = run_file.read_text().replace("tests.helpers.models:mlp", f"network_of_{engine}:Net")
    run_file.write_text(text.replace(f'import = "{USER_OBJECTS}:data"', 'x = "x.npy"\ny = "y.npy"'))
    monkeypatch.chdir("/")
    command("fit", run_file, "--engine", engine, "--workers", 1)
    assert (tmp_path / "runs" / "small" / "parameters.safetensors").exists()
    assert Path.cwd() == Path("/")


def test_options_of_build_and_fit_can_be_set(run_file, command):
    settings = [
        "data.double=true",
        f"build.transform=import:{USER_OBJECTS}:to_float",
        "build.loss={import='torch.nn:CrossEntropyLoss', label_smoothing=0.1}",
        "build.optimizer={optimizer='import:torch.optim:AdamW', lr=0.01}",
        f"build.metric=import:{USER_OBJECTS}:half",
        "fit.shuffle=none",
        "fit.buffer={kind='FIRO', capacity=40}",
        "fit.merge=commutative",
        "output.folder=other",
        "output.checkpoint=false",
    ]
    command("fit", run_file, settings=settings)
    assert history(Path("other"))[-1]["half"] == 0.5
    assert not Path("other/checkpoints").exists()


def test_all_files_are_written_if_they_are_enabled(run_file, command, tmp_path):
    pytest.importorskip("tensorboard")
    keys = [f"output.{key}=true" for key in ("csv", "tensorboard", "report")]
    profile = "output.profile={round = 1, worker = 1}"
    output = command(
        "fit", run_file, settings=[*keys, profile, ("build.compile={backend = 'eager'}")]
    ).out
    folder = tmp_path / "runs" / "small"
    assert "history.csv" in output
    assert len((folder / "history.csv").read_text().splitlines()) == 4
    assert len(list((folder / "tensorboard").iterdir())) == 1
    assert (folder / "profile.json").exists()
    assert "profile.json" in (folder / "report.html").read_text()


END = "fit.callbacks=[{{import='tests.cli.user_objects:Terminate', after=1, how='{}'}}]"


@pytest.mark.parametrize(
    ("setting", "code", "said"),
    [
        (END.format("SIGTERM"), 143, "ended has the results so far; --resume continues"),
        (END.format("interrupt"), 130, "ended has the results so far; --resume continues"),
        ("fit.max_time=0.001", 75, "stopped: max_time"),
        ("fit.num_epochs=2", 0, "2 epochs in 2 rounds"),
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one(
    run_file, trained, command, tmp_path, setting, code, said
):
    # Starts a run.
    output = command("fit", run_file, "--output", "ended", "--resume", "--set", setting, code=code)
    assert said in output.err + output.out
    assert len(history(tmp_path / "ended")) < 3
    command("fit", run_file, "--output", "ended", "--resume")
    assert [record["round"] for record in history(tmp_path / "ended")] == [0, 1, 2]
    assert_same_bits(saved(tmp_path / "ended"), saved(trained))


@pytest.mark.parametrize("place", ["", "/checkpoints"])
@pytest.mark.parametrize("how", ["--overwrite", "--resume"])
def test_a_folder_that_another_program_locks_is_unchanged(run_file, fitted, command, how, place):
    before = saved(fitted), history(fitted), (fitted / "config.toml").read_text()
    lock = FolderLock(Path(f"{fitted}{place}"))
    lock.acquire()
    output = command("fit", run_file, how, "--set", "fit.num_epochs=9", code=2).err
    assert re.search(
        rf"runs/small{place}: process {os.getpid()} on \S+ is writing to this folder", output
    )
    assert_same_bits(saved(fitted), before[0])
    assert history(fitted) == before[1]
    assert (fitted / "config.toml").read_text() == before[2]
    lock.release()
    command("fit", run_file, how, "--set", "fit.num_epochs=4")
    assert len(history(fitted)) == 4
    assert not (fitted / ".lock").exists()


def test_a_run_is_replaced_only_with_overwrite(run_file, fitted, command):
    before = saved(fitted)
    (fitted / "notes.txt").write_text("mine")
    output = command("fit", run_file, "--set", "trainer.seed=4", code=2)
    assert "runs/small holds a run: --resume continues it, --overwrite removes it" in output.err
    shutil.rmtree(fitted / "checkpoints")
    output = command("fit", run_file, "--resume", code=2).err
    assert (
        "runs/small holds a run that has ended, and no checkpoint to resume it from; --overwrite"
    ) in output
    assert_same_bits(saved(fitted), before)
    command("fit", run_file, "--set", "trainer.seed=4", "--overwrite")
    assert any((saved(fitted)[name] != before[name]).any() for name in before)
    assert [record["round"] for record in history(fitted)] == [0, 1, 2]
    assert (fitted / "notes.txt").read_text() == "mine"


def test_keys_are_printed_and_the_example_trains_as_it_is(command, tmp_path, monkeypatch):
    output = command("fit", "--keys").out
    lines = (
        "num_epochs (required)",
        'merge = "synchronous"',
        'precision = "fp32"',
        ('num_workers = "none"'),
    )
    assert all(f"  {line} " in output for line in lines)
    assert "validation_data" not in output
    monkeypatch.chdir(tmp_path)
    Path("spirals.toml").write_text(command("fit", "--example").out)
    command("fit", "spirals.toml", "--engine", "serial")
    assert history(Path("runs/spirals"))[-1]["val_accuracy"] > 0.9


def test_files_of_the_user_are_not_overwritten_or_removed(run_file, command, tmp_path):
    text = f'# mine\n{run_file.read_text()}folder = "."\n'
    own = run_file.with_name("config.toml")
    own.write_text(text)
    for again in ((), ("--overwrite",), ("--resume",)):
        assert f"{own} is no run's" in command("fit", own, *again, code=2).err
    assert own.read_text() == text
    own.unlink()
    (tmp_path / "tensorboard").mkdir()
    (mine := tmp_path / "tensorboard" / "events").write_text("mine")
    refused = command("fit", run_file, "--output", tmp_path, code=2)
    assert f"{mine.parent} exists, and this run would replace it" in refused.err
    assert mine.read_text() == "mine"
    command("fit", run_file, "--output", tmp_path, "--overwrite")
    assert not mine.exists()
    assert len(history(tmp_path)) == 3


DOCS = ROOT / "docs/command-line.md"


def block_of(text, language):
    return re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)[1]


def test_the_example_works(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMPSS_TRAIN_ENGINE", "serial")
    example = DOCS.read_text().partition("## An example")[2].partition("## The file")[0]
    Path("models.py").write_text(block_of(example, "python"))
    Path("digits.toml").write_text(block_of(example, "toml"))
    np.save("new.npy", np.zeros((5, 64), np.float32))
    monkeypatch.delitem(sys.modules, "models", raising=False)
    lines = [shlex.split(line, comments=True) for line in block_of(example, "sh").splitlines()]
    for name, *arguments in lines:
        assert name == "compss-train"
        command(*arguments)
    assert np.load("classes.npy").shape == (5,)
    assert '"accuracy": 0.9' in command("evaluate", "runs/digits", "--json").out
    assert Path("runs/wide/config.toml").exists()


STOP = "fit.early_stopping={{monitor='{}', mode='{}', patience=1}}"
NANS = f"data.import={USER_OBJECTS}:nans"


@pytest.fixture
def nothing_written(run_file):
    """Checks that the test leaves the folder as it is."""
    yield
    assert [path.name for path in run_file.parent.iterdir()] == ["small.toml"]


def test_a_dry_run_prints_the_plan(run_file, command, nothing_written):
    output = command("fit", run_file, "--dry-run", settings=["fit.shuffle=total"]).out
    sizes = (
        "45 samples in 4 blocks",
        "15 samples in 2 blocks\n",
        "2 (serial)",
        "num_epochs=3",
        ("Sequential, 163"),
    )
    assert all(text in output for text in sizes)


ERRORS = {
    "fti.num_epochs=1": "top level: unknown section fti; did you mean fit?",
    "fit.num_epoch=1": "[fit]: unknown key num_epoch; did you mean num_epochs?",
    "fit.validation_data=1": "[fit]: unknown key validation_data",
    "fit.earlystoping=true": "[fit]: unknown key earlystoping; did you mean early_stopping?",
    "fit.num_epochs=0": "[fit]: num_epochs=0: give an integer of at least 1",
    "fit.batch_size=none": (
        "[fit]: num_batches_per_worker=None and batch_size=None: give exactly one"
    ),
    "fit.buffer=foo": (
        "[fit]: buffer: 'foo': give a table, whose keys are kind, capacity, threshold"
    ),
    "build.schedule=3": (
        "[build]: schedule: 3: give a table, whose keys are function, steps, unit, monitor, or an "
    ),
    f"fit.callbacks='import:{USER_OBJECTS}:data'": "give a list of callbacks",
    "fit.callbacks=['import:compss_train.callbacks:ProgressBar']": (
        "is not a Callback; call the class"
    ),
    "fit.early_stopping={patient=1}": (
        "[fit] early_stopping: unknown key patient; did you mean patience"
    ),
    "build.loss=entropy": "[build]: unknown loss 'entropy'; choose one of mean_squared_error",
    "build.metric=acuracy": "did you mean accuracy?",
    "build.optimizer.optimizer=adamm": "unknown optimizer 'adamm'; choose one of ",
    "build.optimizer.learning_rate=1": "no parameter ['learning_rate']; it takes lr, momentum",
    "build.optimizer=adam": (
        '[build]: optimizer = "adam" is a string; give a table, for example { optimizer ='
    ),
    "build.optimizer.lr=-1": "[build]: optimizer 'sgd' has lr=-1: give a finite number",
    "network.import=tests.helpers.models:mpl": (
        "[network]: 'tests.helpers.models:mpl': tests.helpers.models has no"
    ),
    "network.input=3": (
        "calling tests.helpers.models:mlp failed: TypeError: mlp() got an unexpected keyword"
    ),
    "trainer.engine=cloud": "[trainer]: engine='cloud' is not an engine; choose one of auto",
    "validation.fraction=2": "[validation]: fraction=2: give a number above 0 and below 1",
    "data.blocks=99": "[data]: blocks=99 makes 99 blocks of 60 samples",
    "output.checkpoint=3": (
        "[output] checkpoint: 3: give true, false, or a table of the options of Checkpoint"
    ),
    "output.checkpoint={evry=3}": "[output] checkpoint: unknown key evry; did you mean every?",
    "output.where=x": "[output]: unknown key where",
    "output.folder=3": "[output]: folder = 3: give a string",
    "output.folder=small.toml": "small.toml is not a writable folder",
    "output.folder=small.toml/runs": "small.toml is not a writable folder",
    "output.profile={round = 0}": "[output] profile: round=0: give an integer of at least 1",
    f"fit.callbacks=[{{import='{USER_OBJECTS}:RefuseToStart'}}]": "not today",
}


@pytest.mark.parametrize("setting", ERRORS)
def test_invalid_settings_are_errors_before_a_run(run_file, command, setting):
    output = command("fit", run_file, code=2, settings=[setting]).err
    assert output.startswith(f"compss-train fit: {run_file}: ")
    assert ERRORS[setting] in output
    assert not list(run_file.parent.rglob("parameters.safetensors"))


DRY = {
    "network.inputs=5": "mat1 and mat2 shapes cannot be multiplied",
    "build.class_weight=[1, 2]": "class_weight",
    f"build.transform='import:{USER_OBJECTS}:broken'": "this function is broken",
    f"build.metric='import:{USER_OBJECTS}:broken'": "this function is broken",
    "build.loss=cce": "are not probabilities",
    f"network.import={USER_OBJECTS}:Broken": "the network is broken here",
    NANS: "DivergedError: the loss became nan",
}


@pytest.mark.parametrize("setting", DRY)
def test_a_dry_run_trains_on_a_batch(run_file, command, nothing_written, setting):
    err = command("fit", run_file, "--dry-run", code=2, settings=[setting]).err
    assert err.startswith("compss-train fit: the fit would fail: ")
    assert DRY[setting] in err


@pytest.mark.parametrize("setting", [STOP, "output.checkpoint={{best='{}', mode='{}'}}"])
def test_callbacks_monitor_what_is_measured_and_nothing_else(
    run_file, command, nothing_written, setting
):
    for monitor in ("accuracy", "val_accuracy", "loss"):
        command("fit", run_file, "--dry-run", settings=[setting.format(monitor, "max")])
    for arguments in (("--dry-run",), ()):
        output = command(
            "fit", run_file, *arguments, code=2, settings=[setting.format("val_acuracy", "max")]
        ).err
        assert (
            "monitors 'val_acuracy', but records have no 'val_acuracy' but loss, accuracy, val_loss"
        ) in output
        assert "did you mean val_accuracy?" in output


@pytest.mark.filterwarnings("default")
def test_a_dry_run_warns_as_fit_does(run_file, command):
    other = f"fit.callbacks=[{{import='{USER_OBJECTS}:Other'}}]"
    output = command("fit", run_file, "--dry-run", "--workers", 5, settings=[other])
    idle = (
        "5 workers share 4 blocks, so some have nothing to train; cut the data into at least "
        "5 blocks, or"
    )
    assert f"compss-train fit: {idle}" in output.err
    assert "compss-train fit: fits do not call on_epoch_end of Other" in output.err
    assert "No errors found" in output.out


def test_a_dry_run_shows_the_lines_of_a_fit(run_file, command):
    large = {
        "settings": ["fit.batch_size=50", "fit.num_batches_per_worker=none", "fit.progress=true"]
    }
    line = (
        "batches have 12 samples at most, not batch_size=50: there are no more in any of 4 blocks"
    )
    assert command("fit", run_file, "--dry-run", **large).err.strip() == line
    assert (
        command(
            "fit", run_file, "--dry-run", settings=[*large["settings"], "fit.progress=false"]
        ).err
        == ""
    )
    assert command("fit", run_file, **large).err.startswith(line)


def test_the_errors_of_all_sections_are_printed_at_once(run_file, command):
    settings = [
        "fit.epochs=1",
        "network.import=no:thing",
        "validation.fraction=7",
        "build.losss=mse",
        "fti.a=1",
    ]
    output = command("fit", run_file, code=2, settings=settings).err
    assert all(
        place in output
        for place in (
            "[fit]: ",
            "[network]: ",
            "[validation]: ",
            "[build]: ",
            ("unknown section fti"),
        )
    )
    run_file.write_text("fit = 3\nnum_epochs = 3\n")
    output = command("fit", run_file, code=2).err
    assert "top level: fit = 3 is not a section; write [fit] and its keys below" in output
    assert "top level: unknown section num_epochs" in output


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            "moved",
            (
                "history.csv: No such file or directory Raised in the callback Csv, .* And "
                "the results were not"
            ),
        ),
        (
            "a folder",
            (
                "parameters.safetensors: Is a directory .* --resume continues from the "
                "last checkpoint"
            ),
        ),
    ],
)
def test_a_folder_that_changes_while_a_fit_runs(run_file, command, tmp_path, how, said):
    """The error of the fit is printed, not only that of saving its results in what has become of
    the folder.
    """
    folder = tmp_path / "runs" / "small"
    disturb = (
        f"fit.callbacks=[{{import='tests.cli.user_objects:Disturb', folder='{folder}', "
        f"how='{how}'}}]"
    )
    err = command("fit", run_file, code=1, settings=[disturb, "output.csv=true"]).err
    assert re.search(said, err), err
    assert ("small was moved or removed while the fit ran" in err) == (how == "moved")


def test_failed_training_prints_a_line_and_on_request_the_traceback(run_file, command):
    broken = [f"network.import={USER_OBJECTS}:Broken"]
    output = command("fit", run_file, code=1, settings=broken).err
    assert "training failed: RuntimeError: the network is broken here " in output
    assert "no round was completed; --traceback shows where" in output
    assert "Traceback" not in output
    assert "in forward" in command("fit", run_file, "--traceback", code=1, settings=broken).err
