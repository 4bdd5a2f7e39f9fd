"""The subcommand fit: what it checks before a run, and what it tells of."""

import pytest

from compss_train import write_files
from tests.cli.commands.parts import PARTS, history, nans


def test_dry_run_checks_tells_and_leaves_nothing(run_file, command, tmp_path):
    told = command("fit", run_file, "--dry-run").out
    for text in (
        "45 samples in 4 blocks",
        "15 samples in 2 blocks",
        "2 (serial)",
        "num_epochs=3",
        "Sequential, 163",
    ):
        assert text in told
    assert [path.name for path in tmp_path.iterdir()] == ["small.toml"]
    command("fit", run_file, "--dry-run", "--set", "fit.batch_size=0", code=2)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("fti.num_epochs=1", "[fti]: there is no such section; did you mean fit?"),
        ("fit.num_epoch=1", "[fit] num_epoch: there is no such key; did you mean num_epochs?"),
        ("fit.validation_data=1", "[fit] validation_data: there is no such key"),
        ("fit.earlystoping=true", "[fit] earlystoping: there is no such key; did you mean early_stopping?"),
        ("fit.num_epochs=0", "[fit]: num_epochs=0: give an integer of at least 1"),
        ("fit.batch_size=none", "[fit]: num_batches_per_worker=None and batch_size=None: give exactly one"),
        ("fit.merge=sync", '[fit] merge: "sync" does not fit; give "synchronous" or'),
        ("fit.shuffle=total", None),
        (f"fit.callbacks='import:{PARTS}:data'", "[fit]: TypeError: callbacks=<function data"),
        (
            "fit.early_stopping={patient=1}",
            "[fit] early_stopping patient: there is no such key; did you mean patience",
        ),
        ("build.loss=entropy", "[build]: unknown loss 'entropy'; choose one of mean_squared_error"),
        ("build.loss=crossentropy", "did you mean cross_entropy?"),
        ("build.metric=acuracy", "did you mean accuracy?"),
        ("build.optimizer.optimizer=adamm", "unknown optimizer 'adamm'; choose one of adam, sgd"),
        ("build.optimizer.learning_rate=1", "no parameter ['learning_rate']; it takes lr, momentum"),
        ("build.optimizer=adam", '[build] optimizer: "adam" is a text; give a table, for example { optimizer ='),
        ("build.optimizer.lr=-1", "[build]: Invalid learning rate: -1"),
        (
            "network.import=tests.helpers.models:mpl",
            "[network]: 'tests.helpers.models:mpl': tests.helpers.models has no mpl; did you mean mlp?",
        ),
        ("network.input=3", "[network]: tests.helpers.models:mlp has no argument input; did you mean inputs?"),
        ("trainer.engine=cloud", "[trainer]: engine='cloud' is not an engine; choose one of auto"),
        ("trainer.num_workers=0", "[trainer]: num_workers=0: give an integer of at least 1"),
        ("validation.fraction=2", "[validation]: fraction = 2: give a number between 0 and 1"),
        ("validation.seed=2", "[validation] seed: there is no such key"),
        ("data.blocks=99", "[data]: blocks=(99, 1) makes 99 blocks of 60 samples"),
        ("output.checkpoint=3", "[output] checkpoint: 3 does not fit; give true or false or a table"),
        ("output.checkpoint={evry=3}", "[output] checkpoint evry: there is no such key; did you mean every?"),
        (
            "fit.callbacks=['import:compss_train.callbacks:ProgressBar']",
            "is no Callback; call the class to make one",
        ),
        ("output.where=x", "[output] where: there is no such key"),
        ("output.folder=3", "[output] folder: 3 is no text"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_done(run_file, command, tmp_path, setting, message):
    if message is None:
        command("fit", run_file, "--dry-run", "--set", setting)
        return
    told = command("fit", run_file, "--set", setting, code=2).err
    assert told.startswith(f"compss-train fit: {run_file}: ")
    assert message in told
    assert [path.name for path in tmp_path.iterdir()] == ["small.toml"]


OWN = f"fit.callbacks=[{{import='{PARTS}:Own'}}]"
STOP = "fit.early_stopping={{monitor='{}', mode='{}', patience=1}}"


@pytest.mark.parametrize("monitor", ["accuracy", "val_accuracy", "loss"])
def test_what_is_measured_may_be_watched(run_file, command, monitor):
    best = f"output.checkpoint={{best='{monitor}'}}"
    command("fit", run_file, "--dry-run", "--set", STOP.format(monitor, "max"), "--set", best)


@pytest.mark.parametrize(
    "setting", [STOP.format("val_acuracy", "max"), "output.checkpoint={best='val_acuracy', mode='max'}"]
)
def test_what_is_not_is_told_with_the_nearest(run_file, command, setting):
    told = command("fit", run_file, "--dry-run", "--set", setting, code=2).err
    assert "goes by 'val_acuracy', but records have no 'val_acuracy' but loss, accuracy, val_loss" in told
    assert "did you mean val_accuracy?" in told


def test_what_a_callback_adds_to_records_is_written_and_watched(run_file, command, tmp_path):
    settings = (OWN, "output.csv=true", STOP.format("own", "min"))
    command("fit", run_file, *(part for setting in settings for part in ("--set", setting)))
    folder = tmp_path / "runs" / "small"
    assert [record["own"] for record in history(folder)] == [0, 1]
    assert "own" in (folder / "history.csv").read_text().splitlines()[0].split(",")


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("network.inputs=5", "mat1 and mat2 shapes cannot be multiplied"),
        ("build.class_weight=[1, 2]", "class_weight"),
        (f"build.transform='import:{PARTS}:broken'", "this function is broken"),
        (f"build.metric='import:{PARTS}:broken'", "this function is broken"),
        ("build.loss=cce", "are no probabilities"),
        (f"network.import={PARTS}:Broken", "the network is broken here"),
    ],
)
def test_a_dry_run_trains_on_a_batch(run_file, command, tmp_path, setting, told):
    err = command("fit", run_file, "--dry-run", "--set", setting, code=2).err
    assert err.startswith("compss-train fit: the first batch cannot be trained on: ")
    assert told in err
    assert [path.name for path in tmp_path.iterdir()] == ["small.toml"]


def test_a_dry_run_trains_on_one_batch_only(run_file, command, monkeypatch):
    seen = []
    monkeypatch.setattr("tests.cli.commands.parts.to_float", lambda x: seen.append(len(x)) or x.float())
    command("fit", run_file, "--dry-run", "--set", f"build.transform='import:{PARTS}:to_float'")
    assert len(seen) == 1


NANS = ("--set", f"data.import={PARTS}:nans")


def test_a_dry_run_finds_that_the_first_loss_is_nan(run_file, command):
    told = command("fit", run_file, "--dry-run", *NANS, code=2).err
    assert "the first batch cannot be trained on: DivergedError: the loss became nan" in told
    for on_nan in ("skip", "ignore"):
        command("fit", run_file, "--dry-run", *NANS, "--set", f"build.on_nan={on_nan}")


@pytest.mark.parametrize("size", ["fit.batch_size=8", "fit.num_batches_per_worker=2"])
def test_a_dry_run_leaves_later_batches_alone(run_file, command, size):
    run_file.write_text(run_file.read_text().replace("batch_size = 8", "").replace("[validation]\nfraction", "#"))
    command("fit", run_file, "--dry-run", *NANS, "--set", "data.first=8", "--set", size)


@pytest.mark.parametrize(("first", "code"), [(0, 2), (8, 0)])
def test_a_dry_run_reads_a_batch_of_the_first_file(run_file, command, first, code):
    x, y = nans(first=first)
    write_files("many", {"x": x, "y": y}, rows=20)
    text = run_file.read_text().replace("[validation]\nfraction = 0.25", "")
    run_file.write_text(text.replace(f'import = "{PARTS}:data"\nblocks = 4', "files = 'many/*.npz'"))
    command("fit", run_file, "--dry-run", code=code)


@pytest.mark.filterwarnings("default")
def test_a_dry_run_warns_as_the_fit_would(run_file, command):
    told = command(
        "fit", run_file, "--dry-run", "--workers", 5, "--set", f"fit.callbacks=[{{import='{PARTS}:Other'}}]"
    )
    idle = "5 workers share 4 blocks, so that 1 has nothing to train; cut the data into at least 5 blocks"
    assert f"compss-train fit: {idle}" in told.err
    assert "compss-train fit: fits do not call on_epoch_end of Other" in told.err
    assert "Nothing is wrong" in told.out


@pytest.mark.parametrize("place", ["small.toml", "small.toml/runs"])
def test_an_output_that_can_be_no_folder_is_told(run_file, command, place):
    told = command("fit", run_file, "--dry-run", "--output", place, code=2).err
    assert "small.toml is no folder that can be written to" in told


def test_early_stopping_without_validation_is_told_by_a_dry_run(run_file, command):
    text = run_file.read_text()
    assert "[validation]\nfraction" in text
    run_file.write_text(text.replace("[validation]\nfraction", "# fraction"))
    command("fit", run_file, "--dry-run")
    told = command("fit", run_file, "--dry-run", "--set", "fit.early_stopping=true", code=2).err
    assert "[fit]: EarlyStopping goes by 'val_loss', but records have no 'val_loss'" in told


def test_all_that_is_wrong_is_told_at_once(run_file, command):
    wrong = [
        "fit.epochs=1",
        "fit.pools=7",
        "build.loss=entropy",
        "network.import=no:thing",
        "validation.fraction=7",
    ]
    told = command("fit", run_file, *(part for setting in wrong for part in ("--set", setting)), code=2).err
    for section in ("[fit] epochs", "[network]", "[validation]"):
        assert section in told
    wrong = ["fit.pools=7", "build.loss=entropy"]
    told = command("fit", run_file, *(part for setting in wrong for part in ("--set", setting)), code=2).err
    assert "[fit]: " in told
    assert "[build]: " in told


def test_keys_outside_of_sections_are_told(run_file, command):
    run_file.write_text("fit = 3\nnum_epochs = 3\n")
    told = command("fit", run_file, code=2).err
    assert "fit: 3 is no section; write [fit] and its keys below" in told
    assert "num_epochs: there is no such section" in told


def test_a_fit_that_refuses_to_begin_is_wrong_input_and_leaves_no_run(run_file, command):
    refuse = f"fit.callbacks=[{{import='{PARTS}:RefuseToBegin'}}]"
    told = command("fit", run_file, "--set", refuse, code=2).err
    assert "not today" in told
    command("fit", run_file)


def test_training_that_fails_is_told_in_a_line_and_its_traceback_on_request(run_file, command):
    broken = ("--set", f"network.import={PARTS}:Broken")
    told = command("fit", run_file, *broken, code=1).err
    assert "training failed: RuntimeError: the network is broken here " in told
    assert "no round had ended; --traceback shows where" in told
    assert "Traceback" not in told
    assert "in forward" in command("fit", run_file, *broken, "--traceback", code=1).err
