import numpy as np

from compss_train import DistributedTrainer, write_files
from compss_train.model import parameters
from tests.cli.commands.user_objects import data
from tests.helpers.models import SGD, mlp
from tests.helpers.tolerances import WIDTHS, sum_error


def predicted(folder, x):
    with DistributedTrainer(2, engine="serial", seed=3, threads=1) as trainer:
        trainer.build(mlp(), SGD, "cross_entropy", "accuracy")
        trainer.set_parameters(parameters.load(folder / "parameters.safetensors"))
        return trainer.predict(x)


def test_outputs_equal_the_trainers_in_order(fitted, command):
    x, y = data(40)
    expected = predicted(fitted, x)
    np.save("x.npy", x)
    write_files("many", {"x": x, "y": y}, rows=9)
    output = command("predict", fitted, "--input", "x.npy", "--output", "out.npy").out
    assert output == "40 samples, float32 (40, 3), in out.npy\n"
    assert np.allclose(np.load("out.npy"), expected, rtol=0, atol=sum_error(np.float32, WIDTHS, 10))
    command("predict", fitted, "--input", "many/*.npz", "--output", "out.npz")
    assert np.allclose(np.load("out.npz")["output"], expected, rtol=0, atol=sum_error(np.float32, WIDTHS, 10))
    command("predict", fitted, "--input", "x.npy", "--output", "classes.npy", "--classes")
    assert np.array_equal(np.load("classes.npy"), expected.argmax(axis=1))


def test_errors_leave_no_file(fitted, command, tmp_path):
    np.save("x.npy", np.zeros((3, 5), np.float32))
    assert (
        "give a name that ends in .npy or .npz"
        in command("predict", fitted, "--input", "x.npy", "--output", "out.csv", code=2).err
    )
    output = command("predict", fitted, "--input", "x.npy", "--output", "outer/y.npy", code=2).err
    assert "outer/y.npy: the folder outer does not exist; create it" in output
    command("predict", fitted, "--input", "none.npy", "--output", "out.npy", code=2)
    assert not list(tmp_path.glob("*out*"))


def test_samples_that_do_not_fit_the_network_are_a_short_error(fitted, command):
    np.save("x.npy", np.zeros((3, 5), np.float32))
    output = command("predict", fitted, "--input", "x.npy", "--output", "out.npy", code=2).err
    assert output.startswith("compss-train predict: these samples cannot be predicted: ")
    assert "shape (3, 5)" in output
    assert "Traceback" not in output
