import json
import shutil

import pytest

from tests.cli.commands.user_objects import history

MERGE = {"kind": "synchronous", "every": 2, "unit": "batches"}
NESTEROV = {"optimizer": "sgd", "lr": 0.7, "momentum": 0.9}


@pytest.fixture
def fit(run_file, command):
    """Run the small file with changes, in rounds of two batches, and return the folder."""

    def run(name, workers, *settings):
        rounds = (
            "fit.merge={unit = 'batches', every = 2}",
            "data.samples=400",
            "data.blocks=6",
            "build.optimizer.lr=0.005",
        )
        quiet = ("fit.progress=false", "output.report=false", "output.checkpoint=false")
        changes = [part for setting in (*rounds, *quiet, *settings) for part in ("--set", setting)]
        command("fit", run_file, *changes, "--workers", workers, "--output", name)
        return run_file.parent / name

    return run


def rows(output):
    """The table, as lists of cells by number of workers."""
    lines = [line.split() for line in output.splitlines() if line[:7].strip().rstrip("*").isdigit()]
    return {int(cells[0].rstrip("*")): cells for cells in lines}


def change(folder, name, **values):
    """Return a copy of a run with other values in a section of its configuration."""
    copy = folder.with_name(f"{folder.name} with other {name}")
    shutil.copytree(folder, copy)
    file = copy / "configuration.json"
    configuration = json.loads(file.read_text())
    configuration[name] |= values
    file.write_text(json.dumps(configuration))
    return copy


def test_one_run_or_two_say_what_to_expect(fit, command):
    small, large = fit("small", 2), fit("large", 6)
    output = command("advise", large).out
    assert f"{large}: 6 workers, 1 at a time, 3 epochs of 300 samples, 0." in output
    assert "from the differences between the workers of one run: a rough guess" in output
    assert list(rows(output)) == [1, 2, 4, 6, 8, 16, 32, 64]
    best = max(record["val_accuracy"] for record in history(large))
    assert rows(output)[6][::5] == ["6*", f"{best:.4f}"]
    assert "Worth it where 1 worker trains at a time: " in output
    assert "see --processes" not in command("advise", large, "--processes", 64).out
    output = command("advise", small, large, "--metric", "loss").out
    assert "from the learning curves of 2 runs" in output
    losses = [min(record["val_loss"] for record in history(run)) for run in (small, large)]
    assert [rows(output)[workers][::5] for workers in (2, 6)] == [
        [f"{workers}*", f"{loss:.4f}"] for workers, loss in zip((2, 6), losses, strict=True)
    ]
    assert f"epochs to val_loss {max(losses):.4g}" in output
    assert "val_loss after 5 epochs" in command("advise", small, large, "--epochs", 5, "--metric", "val_loss").out


def test_auto_chooses_for_each_number_of_workers(fit, command):
    run = fit(
        "auto", 2, "fit.merge={kind = 'auto', unit = 'batches', every = 2}", "fit.batch_size=none", "data.blocks=2"
    )
    table = rows(command("advise", run).out)
    assert [table[workers][1] for workers in (1, 2, 4, 64)] == ["100", "100", "75", "5"]


def test_runs_that_cannot_advise_are_errors(fit, command):
    run, alone = fit("run", 2), fit("alone", 1)

    def error(*arguments):
        return command("advise", *arguments, code=2).err

    assert "alone: one worker merges nothing: name a run with 2 workers or more as well" in error(alone)
    other = change(run, "fit", merge={"kind": "commutative"})
    assert "with merge='commutative' workers do not merge in rounds" in error(other)
    other = change(run, "build", loss="mse")
    assert "differ in loss: name runs that differ in the number of workers only" in error(run, other)
    assert "--metric speed: the runs have val_loss, val_accuracy" in error(run, "--metric", "speed")
    assert "--target 7: give a value that all runs have passed, from 0." in error(run, "--target", 7)
    assert "--processes=0: give an integer of at least 1" in error(run, "--processes", 0)
    assert "--epochs=0: give an integer of at least 1" in error(run, "--epochs", 0)
    records = history(run)
    for record in records:
        record.pop("val_loss")
        record.pop("val_accuracy")
    (run / "history.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert "the runs have no validation data" in error(run)
    (run / "configuration.json").unlink()
    assert "no configuration.json is beside the history; name the folder of a run" in error(run)


def test_doubts_are_noted(fit, command):
    run = fit("run", 2)
    for name, values, note in (
        ("build", {"schedule": {"step": 3}}, "the learning rate changes by a schedule"),
        ("fit", {"buffer": {"kind": "FIRO"}}, "samples pass through a buffer"),
        ("fit", {"merge": {**MERGE, "outer_optimizer": NESTEROV}}, "is assumed, not measured"),
    ):
        folder = change(run, name, **values)
        assert note in command("advise", folder).out
        shutil.rmtree(folder)
