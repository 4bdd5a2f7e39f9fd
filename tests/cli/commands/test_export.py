import numpy as np
import pytest

from compss_train.model import parameters
from tests.cli.commands.parts import data
from tests.helpers.models import assert_same_bits


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_parameters_are_those_of_the_run(fitted, command, suffix):
    command("export", fitted, "-o", f"model{suffix}")
    ours, theirs = parameters.load(f"model{suffix}"), parameters.load(fitted / "parameters.safetensors")
    assert_same_bits({name: ours[name] for name in sorted(ours)}, {name: theirs[name] for name in sorted(theirs)})


def test_onnx_takes_what_the_run_was_trained_on(run_file, command):
    onnxruntime = pytest.importorskip("onnxruntime")
    command(
        "fit",
        run_file,
        "--set",
        "data.double=true",
        "--set",
        "build.transform=import:tests.cli.commands.parts:to_float",
    )
    command("export", "runs/small", "-o", "model.onnx")
    np.save("x.npy", data(40, double=True)[0])
    command("predict", "runs/small", "--input", "x.npy", "--output", "y.npy")
    session = onnxruntime.InferenceSession("model.onnx")
    assert np.allclose(session.run(None, {"x": np.load("x.npy")})[0], np.load("y.npy"), atol=1e-5)


def test_other_suffixes_are_refused(fitted, command, tmp_path):
    assert "ends in .npz, .safetensors, .onnx" in command("export", fitted, "-o", "model.pth", code=2).err
    assert not (tmp_path / "model.pth").exists()


def test_a_folder_that_is_not_there_is_told_and_not_made(fitted, command, tmp_path):
    told = command("export", fitted, "-o", "new/model.npz", code=2).err
    assert "new/model.npz: there is no folder new; make it" in told
    assert not (tmp_path / "new").exists()
