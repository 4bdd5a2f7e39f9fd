"""The subcommand fit: its checks before a run, and its error messages."""

import pytest

from compss_train import write_files
from tests.cli.user_objects import USER_OBJECTS, history, nans

OWN = f"fit.callbacks=[{{import='{USER_OBJECTS}:Own'}}]"
STOP = "fit.early_stopping={{monitor='{}', mode='{}', patience=1}}"
NANS = f"data.import={USER_OBJECTS}:nans"


@pytest.fixture
def nothing_written(run_file):
    """Checks that the test leaves the folder as it is."""
    yield
    assert [path.name for path in run_file.parent.iterdir()] == ["small.toml"]


def test_a_dry_run_prints_the_plan(run_file, command, nothing_written):
    output = command("fit", run_file, "--dry-run", settings=["fit.shuffle=total"]).out
    sizes = ("45 samples in 4 blocks", "15 samples in 2 blocks\n", "2 (serial)", "num_epochs=3", "Sequential, 163")
    assert all(text in output for text in sizes)


ERRORS = {
    "fti.num_epochs=1": "top level: unknown section fti; did you mean fit?",
    "fit.num_epoch=1": "[fit]: unknown key num_epoch; did you mean num_epochs?",
    "fit.validation_data=1": "[fit]: unknown key validation_data",
    "fit.earlystoping=true": "[fit]: unknown key earlystoping; did you mean early_stopping?",
    "fit.num_epochs=0": "[fit]: num_epochs=0: give an integer of at least 1",
    "fit.batch_size=none": "[fit]: num_batches_per_worker=None and batch_size=None: give exactly one",
    "fit.buffer=foo": "[fit]: buffer: 'foo': give a table, whose keys are kind, capacity, threshold",
    "build.schedule=3": "[build]: schedule: 3: give a table, whose keys are function, steps, unit, or an object by",
    "fit.merge=sync": "[fit]: merge='sync': choose one of 'synchronous'",
    f"fit.callbacks='import:{USER_OBJECTS}:data'": "give a list of callbacks",
    "fit.callbacks=['import:compss_train.callbacks:ProgressBar']": "is not a Callback; call the class",
    "fit.early_stopping={patient=1}": "[fit] early_stopping: unknown key patient; did you mean patience",
    "build.loss=entropy": "[build]: unknown loss 'entropy'; choose one of mean_squared_error",
    "build.loss=crossentropy": "did you mean cross_entropy?",
    "build.metric=acuracy": "did you mean accuracy?",
    "build.optimizer.optimizer=adamm": "unknown optimizer 'adamm'; choose one of adam, sgd",
    "build.optimizer.learning_rate=1": "no parameter ['learning_rate']; it takes lr, momentum",
    "build.optimizer=adam": '[build]: optimizer = "adam" is a string; give a table, for example { optimizer =',
    "build.optimizer.lr=-1": "[build]: Invalid learning rate: -1",
    "network.import=tests.helpers.models:mpl": "[network]: 'tests.helpers.models:mpl': tests.helpers.models has no",
    "network.input=3": "[network]: tests.helpers.models:mlp: unknown argument input; did you mean inputs?",
    "trainer.engine=cloud": "[trainer]: engine='cloud' is not an engine; choose one of auto",
    "trainer.num_workers=0": "[trainer]: num_workers=0: give an integer of at least 1",
    "validation.fraction=2": "[validation]: fraction=2: give a number above 0 and below 1",
    "validation.seed=2": "[validation]: unknown key seed",
    "data.blocks=99": "[data]: blocks=99 makes 99 blocks of 60 samples",
    "output.checkpoint=3": "[output] checkpoint: 3: give true, false, or a table of the options of Checkpoint",
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
def test_callbacks_monitor_what_is_measured_and_nothing_else(run_file, command, nothing_written, setting):
    for monitor in ("accuracy", "val_accuracy", "loss"):
        command("fit", run_file, "--dry-run", settings=[setting.format(monitor, "max")])
    for arguments in (("--dry-run",), ()):
        output = command("fit", run_file, *arguments, code=2, settings=[setting.format("val_acuracy", "max")]).err
        assert "monitors 'val_acuracy', but records have no 'val_acuracy' but loss, accuracy, val_loss" in output
        assert "did you mean val_accuracy?" in output


def test_numbers_that_a_callback_adds_are_written_and_monitored(run_file, command, tmp_path):
    command("fit", run_file, settings=[OWN, "output.csv=true", STOP.format("own", "min")])
    folder = tmp_path / "runs" / "small"
    assert [record["own"] for record in history(folder)] == [0, 1]
    assert "own" in (folder / "history.csv").read_text().splitlines()[0].split(",")


def test_a_dry_run_trains_on_one_batch_only(run_file, command, monkeypatch):
    seen = []
    monkeypatch.setattr("tests.cli.user_objects.to_float", lambda x: seen.append(len(x)) or x.float())
    command("fit", run_file, "--dry-run", settings=[f"build.transform='import:{USER_OBJECTS}:to_float'"])
    assert len(seen) == 1


@pytest.mark.parametrize(
    "settings",
    [
        ["fit.batch_size=8", "build.gradients={on_nan = 'skip'}"],
        ["fit.batch_size=8", "build.gradients={on_nan = 'ignore'}"],
        ["fit.batch_size=8", "data.first=8"],  # later batches are not trained on
        ["fit.num_batches_per_worker=2", "data.first=8"],
    ],
)
def test_a_dry_run_accepts_nan_where_the_fit_does(run_file, command, settings):
    run_file.write_text(run_file.read_text().replace("batch_size = 8", "").replace("[validation]\nfraction", "#"))
    command("fit", run_file, "--dry-run", settings=[NANS, *settings])


@pytest.mark.parametrize(("first", "code"), [(0, 2), (8, 0)])
def test_a_dry_run_reads_a_batch_of_the_first_file(run_file, command, first, code):
    x, y = nans(first=first)
    write_files("many", {"x": x, "y": y}, rows=20)
    text = run_file.read_text().replace("[validation]\nfraction = 0.25", "")
    run_file.write_text(text.replace(f'import = "{USER_OBJECTS}:data"\nblocks = 4', "files = 'many/*.npz'"))
    command("fit", run_file, "--dry-run", code=code)


@pytest.mark.filterwarnings("default")
def test_a_dry_run_warns_as_fit_does(run_file, command):
    other = f"fit.callbacks=[{{import='{USER_OBJECTS}:Other'}}]"
    output = command("fit", run_file, "--dry-run", "--workers", 5, settings=[other])
    idle = "5 workers share 4 blocks, so that some have nothing to train; cut the data into at least 5 blocks, or"
    assert f"compss-train fit: {idle}" in output.err
    assert "compss-train fit: fits do not call on_epoch_end of Other" in output.err
    assert "No errors found" in output.out


def test_early_stopping_without_validation_is_an_error(run_file, command):
    run_file.write_text(run_file.read_text().replace("[validation]\nfraction", "# fraction"))
    output = command("fit", run_file, "--dry-run", code=2, settings=["fit.early_stopping=true"]).err
    assert "the fit would fail: EarlyStopping monitors 'val_loss', but records have no 'val_loss'" in output


def test_the_errors_of_all_sections_are_printed_at_once(run_file, command):
    settings = ["fit.epochs=1", "network.import=no:thing", "validation.fraction=7", "build.losss=mse", "fti.a=1"]
    output = command("fit", run_file, code=2, settings=settings).err
    assert all(
        place in output
        for place in ("[fit]: ", "[network]: ", "[validation]: ", "[build]: ", "unknown section fti")
    )
    run_file.write_text("fit = 3\nnum_epochs = 3\n")
    output = command("fit", run_file, code=2).err
    assert "top level: fit = 3 is not a section; write [fit] and its keys below" in output
    assert "top level: unknown section num_epochs" in output


def test_failed_training_prints_a_line_and_on_request_the_traceback(run_file, command):
    broken = [f"network.import={USER_OBJECTS}:Broken"]
    output = command("fit", run_file, code=1, settings=broken).err
    assert "training failed: RuntimeError: the network is broken here " in output
    assert "no round was completed; --traceback shows where" in output
    assert "Traceback" not in output
    assert "in forward" in command("fit", run_file, "--traceback", code=1, settings=broken).err
