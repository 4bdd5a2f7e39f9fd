import json

import numpy as np
import pytest
import torch

from compss_train import write_files
from tests.commands.parts import data


def measured(done):
    return json.loads(done.out)


def last_record(folder):
    return json.loads((folder / "history.jsonl").read_text().splitlines()[-1])


def test_validation_data_are_those_of_the_run(fitted, command):
    result = measured(command("evaluate", fitted, "--json"))
    record = last_record(fitted)
    assert result == {name: record[f"val_{name}"] for name in ("loss", "accuracy")}
    assert command("evaluate", fitted).out == f"loss {result['loss']:.4f}, accuracy {result['accuracy']:.4f}\n"


def test_other_data_are_files(fitted, command, tmp_path):
    x, y = data(40)
    np.save("x.npy", x)
    np.save("y.npy", y)
    np.savez("both.npz", x=x, y=y)
    torch.save({"x": torch.from_numpy(x), "y": torch.from_numpy(y)}, "both.pt")
    write_files("many", {"x": x, "y": y}, rows=9)
    results = [
        measured(command("evaluate", fitted, "--json", "--data", *files))
        for files in (["x.npy", "y.npy"], ["both.npz"], ["both.pt"], ["many/*.npz"])
    ]
    for result in results:
        assert result == pytest.approx(results[0], abs=1e-6)


def test_names_of_arrays_are_those_of_the_data_that_were_trained_on(run_file, command, tmp_path):
    x, y = data(40)
    np.savez("both.npz", a=x, b=y)
    text = run_file.read_text().replace('import = "tests.commands.parts:data"\nblocks = 4', "FILES")
    run_file.write_text(
        text.replace("FILES", 'files = ["both.npz"]\nx = "a"\ny = "b"').replace("fraction = 0.25", "")
    )
    command("fit", run_file, "--workers", 1)
    assert command("evaluate", "runs/small", "--data", "both.npz").out.startswith("loss ")
    told = command("evaluate", "runs/small", code=2).err
    assert "[validation]: the run has none, so there is nothing to evaluate on; give --data" in told


def test_the_best_round_is_not_the_last_where_training_got_worse(run_file, command, tmp_path):
    command("fit", run_file, "--set", "build.optimizer.lr=5.0", "--set", "fit.num_epochs=4")
    folder = tmp_path / "runs" / "small"
    records = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    best = measured(command("evaluate", folder, "--best", "--json"))
    assert best["loss"] == min(record["val_loss"] for record in records) < records[-1]["val_loss"]


def test_a_run_that_was_killed_has_its_last_checkpoint(fitted, command):
    before = command("evaluate", fitted).out
    (fitted / "parameters.safetensors").unlink()
    assert command("evaluate", fitted).out == before


def test_what_is_no_run_is_told(run_file, fitted, command, tmp_path):
    assert "cannot read" in command("evaluate", "nowhere", code=2).err
    for path in (fitted / "parameters.safetensors", *(fitted / "checkpoints").glob("*/*")):
        path.unlink()
    assert "checkpoint" in command("evaluate", fitted, code=2).err
    command("fit", run_file, "--output", "bare", "--set", "output.checkpoint=false")
    assert "bare has no checkpoints;" in command("evaluate", "bare", "--best", code=2).err


@pytest.mark.parametrize(
    ("x", "why"),
    [
        (np.zeros((4, 6)), "float64 went through a network with float32"),
        (np.zeros((4, 5), np.float32), "shapes cannot be multiplied"),
    ],
)
def test_samples_that_the_network_does_not_take_are_told_in_short(fitted, command, x, why):
    np.save("x.npy", x)
    np.save("y.npy", np.zeros(4, np.int64))
    told = command("evaluate", fitted, "--data", "x.npy", "y.npy", code=2).err
    assert told.startswith("compss-train evaluate: these samples cannot be evaluated: ")
    assert why in told
    assert "Traceback" not in told
