"""The command line as an application of COMPSs: runcompss runs the script that pip installs."""

import json

import pytest

from compss_train.cli import main
from compss_train.model import parameters
from tests.compss.conftest import OF_THREE
from tests.helpers.models import assert_same_bits

pytestmark = pytest.mark.timeout(OF_THREE)

SCRIPT = """
import sys
from compss_train.cli import main
if __name__ == '__main__':
    sys.exit(main())
"""
RUN_FILE = """
[trainer]
num_workers = 2
threads = 1
seed = 0

[network]
import = "network_of_command:Net"

[data]
import = "compss_train.cli.fit:spirals"
samples = 200
blocks = 4

[build]
optimizer = { optimizer = "adam", lr = 0.01 }
loss = "cross_entropy"
metric = "accuracy"

[fit]
num_epochs = 2
batch_size = 10
"""
NETWORK = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x):
        return self.layers(x)
"""


@pytest.fixture
def folder(tmp_path):
    """A run file, and the module that it names."""
    folder = tmp_path / "described"
    folder.mkdir()
    (folder / "run.toml").write_text(RUN_FILE)
    (folder / "network_of_command.py").write_text(NETWORK)
    return folder


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "bin" / "compss-train"
    path.parent.mkdir()
    path.write_text(SCRIPT)
    return path


def saved(folder):
    arrays = parameters.load(folder / "parameters.safetensors")
    return {name: arrays[name] for name in sorted(arrays)}


def test_a_run_file_gives_the_same_bits_under_runcompss(run, script, folder, tmp_path):
    ours = tmp_path / "ours"
    done = run(
        script, "fit", folder / "run.toml", "--output", ours, flags=(f"--pythonpath={folder}",)
    )
    assert done.returncode == 0, done.output
    assert "2 epochs in 2 rounds, 2 workers" in done.output
    assert (
        main(
            [
                "fit",
                str(folder / "run.toml"),
                "--engine",
                "serial",
                "--output",
                str(tmp_path / "theirs"),
            ]
        )
        == 0
    )
    assert_same_bits(saved(ours), saved(tmp_path / "theirs"))
    records = [json.loads(line) for line in (ours / "history.jsonl").read_text().splitlines()]
    assert [record["round"] for record in records] == [0, 1]


def test_modules_that_workers_do_not_find_are_an_error(run, script, folder):
    lost = run(script, "fit", folder / "run.toml")
    assert lost.returncode == 1, lost.output
    assert f"runcompss --pythonpath={folder}" in lost.output
