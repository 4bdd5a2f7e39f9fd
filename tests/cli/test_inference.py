import json

import numpy as np
import pytest
import torch

from compss_train import DistributedTrainer, write_files
from compss_train.model import parameters
from tests.cli.user_objects import data
from tests.helpers.models import SGD, assert_same_bits, mlp
from tests.helpers.tolerances import WIDTHS, loss_error, sum_error


def parsed(done):
    return json.loads(done.out)


def last_record(folder):
    return json.loads((folder / "history.jsonl").read_text().splitlines()[-1])


def test_the_default_data_are_the_runs_validation_data(fitted, command):
    result = parsed(command("evaluate", fitted, "--json"))
    record = last_record(fitted)
    assert result == {name: record[f"val_{name}"] for name in ("loss", "accuracy")}
    assert command("evaluate", fitted).out == f"loss {result['loss']:.4f}, accuracy {result['accuracy']:.4f}\n"


def test_other_data_are_read_from_files(fitted, command, tmp_path):
    x, y = data(40)
    np.save("x.npy", x)
    np.save("y.npy", y)
    np.savez("both.npz", x=x, y=y)
    torch.save({"x": torch.from_numpy(x), "y": torch.from_numpy(y)}, "both.pt")
    write_files("many", {"x": x, "y": y}, rows=9)
    results = [
        parsed(command("evaluate", fitted, "--json", "--data", *files))
        for files in (["x.npy", "y.npy"], ["both.npz"], ["both.pt"], ["many/*.npz"])
    ]
    for result in results:
        assert result == pytest.approx(results[0], abs=loss_error(np.float32, 40))


def test_array_names_in_files_are_those_of_the_training_data(run_file, command, tmp_path):
    x, y = data(40)
    np.savez("both.npz", a=x, b=y)
    text = run_file.read_text().replace('import = "tests.cli.user_objects:data"\nblocks = 4', "FILES")
    run_file.write_text(
        text.replace("FILES", 'files = ["both.npz"]\nx = "a"\ny = "b"').replace("fraction = 0.25", "")
    )
    command("fit", run_file, "--workers", 1)
    assert command("evaluate", "runs/small", "--data", "both.npz").out.startswith("loss ")
    output = command("evaluate", "runs/small", code=2).err
    assert "[validation]: the run has no validation data to evaluate on; give --data" in output


ARRAYS = """x = { file = "train.npz", key = "images" }
y = { file = "train.npz", key = "labels" }"""


@pytest.fixture
def fitted_arrays(run_file, command):
    """The folder of a run with named arrays; test.npz has the same names, both.npz others."""
    x, y = data(40)
    np.savez("train.npz", images=x, labels=y)
    np.savez("test.npz", images=x, labels=y)
    np.savez("both.npz", a=x, b=y)
    np.savez("alone.npz", x)
    np.save("x.npy", x)
    run_file.write_text(run_file.read_text().replace('import = "tests.cli.user_objects:data"', ARRAYS))
    command("fit", run_file)
    return run_file.parent / "runs" / "small"


def test_array_names_are_the_keys_of_the_training_data(fitted_arrays, command):
    trained = parsed(command("evaluate", fitted_arrays, "--json", "--data", "test.npz"))
    others = ("--set", "data.x.key=a", "--set", "data.y.key=b")
    assert trained == parsed(command("evaluate", fitted_arrays, "--json", "--data", "both.npz", *others))
    for samples in ("test.npz", "alone.npz", "x.npy"):
        command("predict", fitted_arrays, "--input", samples, "--output", f"of-{samples}.npy")
        assert np.array_equal(np.load(f"of-{samples}.npy"), np.load("of-test.npz.npy"))


def test_a_missing_array_is_an_error_with_the_setting_that_names_it(fitted_arrays, command):
    output = command("evaluate", fitted_arrays, "--data", "both.npz", code=2).err
    assert (
        "both.npz has no array 'images' for x, it has 'a', 'b'; --set data.x.key=NAME sets another name" in output
    )
    output = command("evaluate", fitted_arrays, "--data", "alone.npz", code=2).err
    assert "alone.npz has no array 'images' for x" in output


def test_default_array_names_are_x_and_y(fitted, command):
    x, y = data(40)
    np.savez("both.npz", x=x, b=y)
    output = command("evaluate", fitted, "--data", "both.npz", code=2).err
    assert "both.npz has no array 'y' for y, it has 'x', 'b'; files are read by the names x and y" in output


def test_x_alone_is_an_error_unless_it_is_its_own_target(run_file, fitted, command):
    x, _ = data(40)
    np.save("x.npy", x)
    output = command("evaluate", fitted, "--data", "x.npy", code=2).err
    assert "x.npy is x alone: name a second .npy file, y" in output
    text = run_file.read_text().replace('import = "tests.cli.user_objects:data"', 'x = "x.npy"')
    text = text.replace("tests.helpers.models:mlp", "tests.cli.user_objects:same").replace(
        'metric = "accuracy"', ""
    )
    run_file.write_text(text.replace("cross_entropy", "mse"))
    command("fit", run_file, "--overwrite")
    alone = command("evaluate", fitted, "--data", "x.npy").out
    assert alone == command("evaluate", fitted, "--data", "x.npy", "x.npy").out


def test_best_is_not_the_last_round_after_divergence(run_file, command, tmp_path):
    command("fit", run_file, "--set", "build.optimizer.lr=5.0", "--set", "fit.num_epochs=4")
    folder = tmp_path / "runs" / "small"
    records = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    best = parsed(command("evaluate", folder, "--best", "--json"))
    assert best["loss"] == min(record["val_loss"] for record in records) < records[-1]["val_loss"]


def test_a_killed_run_uses_its_last_checkpoint(fitted, command):
    before = command("evaluate", fitted).out
    (fitted / "parameters.safetensors").unlink()
    assert command("evaluate", fitted).out == before


def test_a_folder_without_a_run_is_an_error(run_file, fitted, command, tmp_path):
    output = command("evaluate", "nowhere", code=2).err
    assert "nowhere: No such file or directory; give the folder that compss-train fit printed" in output
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
def test_samples_that_do_not_fit_the_network_are_a_short_error(fitted, command, x, why):
    np.save("x.npy", x)
    np.save("y.npy", np.zeros(4, np.int64))
    output = command("evaluate", fitted, "--data", "x.npy", "y.npy", code=2).err
    assert "compss-train evaluate: these samples cannot be evaluated: " in output
    assert why in output
    assert "Traceback" not in output


def expected_predictions(folder, x):
    with DistributedTrainer(2, engine="serial", seed=3, threads=1) as trainer:
        trainer.build(mlp(), SGD, "cross_entropy", "accuracy")
        trainer.set_parameters(parameters.load(folder / "parameters.safetensors"))
        return trainer.predict(x)


def test_outputs_equal_the_trainers_in_order(fitted, command):
    x, y = data(40)
    expected = expected_predictions(fitted, x)
    np.save("x.npy", x)
    write_files("many", {"x": x, "y": y}, rows=9)
    output = command("predict", fitted, "--input", "x.npy", "--output", "out.npy").out
    assert output == "40 samples, float32 (40, 3), in out.npy\n"
    assert np.allclose(np.load("out.npy"), expected, rtol=0, atol=sum_error(np.float32, WIDTHS, 10))
    command("predict", fitted, "--input", "many/*.npz", "--output", "out.npz")
    assert np.allclose(np.load("out.npz")["output"], expected, rtol=0, atol=sum_error(np.float32, WIDTHS, 10))
    command("predict", fitted, "--input", "x.npy", "--output", "classes.npy", "--classes")
    assert np.array_equal(np.load("classes.npy"), expected.argmax(axis=1))


def test_errors_of_predict_leave_no_file(fitted, command, tmp_path):
    np.save("x.npy", np.zeros((3, 5), np.float32))
    assert (
        "give a name that ends in .npy or .npz"
        in command("predict", fitted, "--input", "x.npy", "--output", "out.csv", code=2).err
    )
    output = command("predict", fitted, "--input", "x.npy", "--output", "outer/y.npy", code=2).err
    assert "outer/y.npy: the folder outer does not exist; create it" in output
    command("predict", fitted, "--input", "none.npy", "--output", "out.npy", code=2)
    assert not list(tmp_path.glob("*out*"))


def test_samples_to_predict_that_do_not_fit_the_network_are_a_short_error(fitted, command):
    np.save("x.npy", np.zeros((3, 5), np.float32))
    output = command("predict", fitted, "--input", "x.npy", "--output", "out.npy", code=2).err
    assert "compss-train predict: these samples cannot be predicted: " in output
    assert "shape (3, 5)" in output
    assert "Traceback" not in output


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_exported_parameters_equal_those_of_the_run(fitted, command, suffix):
    command("export", fitted, "-o", f"model{suffix}")
    ours, theirs = parameters.load(f"model{suffix}"), parameters.load(fitted / "parameters.safetensors")
    assert_same_bits({name: ours[name] for name in sorted(ours)}, {name: theirs[name] for name in sorted(theirs)})


def test_onnx_has_the_input_of_the_training_data(run_file, command):
    onnxruntime = pytest.importorskip("onnxruntime")
    command(
        "fit",
        run_file,
        "--set",
        "data.double=true",
        "--set",
        "build.transform=import:tests.cli.user_objects:to_float",
    )
    command("export", "runs/small", "-o", "model.onnx")
    np.save("x.npy", data(40, double=True)[0])
    command("predict", "runs/small", "--input", "x.npy", "--output", "y.npy")
    session = onnxruntime.InferenceSession("model.onnx")
    outputs = session.run(None, {"x": np.load("x.npy")})[0]
    np.testing.assert_allclose(outputs, np.load("y.npy"), rtol=0, atol=sum_error(np.float32, WIDTHS, 10))


def test_other_suffixes_of_exports_are_an_error(fitted, command, tmp_path):
    assert "ends in .npz, .safetensors, .onnx" in command("export", fitted, "-o", "model.pth", code=2).err
    assert not (tmp_path / "model.pth").exists()


def test_a_missing_folder_for_an_export_is_an_error_and_not_created(fitted, command, tmp_path):
    output = command("export", fitted, "-o", "new/model.npz", code=2).err
    assert "new/model.npz: the folder new does not exist; create it" in output
    assert not (tmp_path / "new").exists()
