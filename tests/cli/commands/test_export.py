import numpy as np
import pytest

from compss_train.model import parameters
from tests.cli.commands.user_objects import data
from tests.helpers.models import assert_same_bits


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
        "build.transform=import:tests.cli.commands.user_objects:to_float",
    )
    command("export", "runs/small", "-o", "model.onnx")
    np.save("x.npy", data(40, double=True)[0])
    command("predict", "runs/small", "--input", "x.npy", "--output", "y.npy")
    session = onnxruntime.InferenceSession("model.onnx")
    assert np.allclose(session.run(None, {"x": np.load("x.npy")})[0], np.load("y.npy"), atol=1e-5)


def test_other_suffixes_are_an_error(fitted, command, tmp_path):
    assert "ends in .npz, .safetensors, .onnx" in command("export", fitted, "-o", "model.pth", code=2).err
    assert not (tmp_path / "model.pth").exists()


def test_a_missing_folder_is_an_error_and_not_created(fitted, command, tmp_path):
    output = command("export", fitted, "-o", "new/model.npz", code=2).err
    assert "new/model.npz: the folder new does not exist; create it" in output
    assert not (tmp_path / "new").exists()
