"""Runs whose files are damaged: the results of whole ones, or one line that names the file; never a
traceback.
"""

import random
import shutil

import numpy as np
import pytest

from compss_train.cli import main
from compss_train.model import parameters
from tests.cli.user_objects import data
from tests.helpers.cases import slow

DAMAGES = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) * 2 // 3],
    "random": lambda content: random.Random(0).randbytes(len(content)),
    "one byte": lambda content: content[:-40] + bytes([content[-40] ^ 255]) + content[-39:],
}
COMMANDS = {
    "evaluate": ["evaluate", "runs/small", "--trust", "--json"],
    "evaluate --best": ["evaluate", "runs/small", "--trust", "--json", "--best"],
    "predict": ["predict", "runs/small", "--trust", "--input", "x.npy", "--output", "y.npy"],
    "fit --resume": ["fit", "small.toml", "--resume", "--set", "fit.num_epochs=4"],
}


def made(name, printed):
    """Return what a command has made."""
    if name == "predict":
        return np.load("y.npy").tolist()
    if name.startswith("evaluate"):
        return printed
    return {
        key: array.tolist()
        for key, array in parameters.load("runs/small/parameters.safetensors").items()
    }


@pytest.mark.filterwarnings("always")
@pytest.mark.parametrize("how", ["cut", *slow("empty", "random", "one byte")])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_damaged_file_is_named_or_does_not_matter(name, how, fitted, tmp_path, capsys):
    np.save("x.npy", data(8)[0])
    whole = tmp_path / "whole"
    shutil.copytree(fitted, whole)

    def ran():
        capsys.readouterr()
        code = main(COMMANDS[name])
        printed = capsys.readouterr()
        return code, printed.out, printed.err.splitlines()

    code, out, _ = ran()
    assert code == 0
    expected = made(name, out)
    for path in sorted(each.relative_to(whole) for each in whole.rglob("*") if each.is_file()):
        shutil.rmtree(fitted)
        shutil.copytree(whole, fitted)
        (fitted / path).write_bytes(DAMAGES[how]((whole / path).read_bytes()))
        code, out, lines = ran()
        if code or made(name, out) != expected:
            assert len(lines) == 1, (path, how, lines)
            assert path.name in lines[0] or path.parent.name in lines[0], (path, how, lines)
        if code:
            assert code == 2, (path, how, lines)
