"""The command line as an application of COMPSs: runcompss runs the script that pip installs."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from compss_train.cli import main
from compss_train.engines.sources import MOST_BYTES
from compss_train.model import parameters
from tests.compss.conftest import INSIDE, LIMIT, OF_THREE
from tests.helpers.models import assert_same_bits
from tests.helpers.processes import ROOT

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
    done = run(script, "fit", folder / "run.toml", "--output", ours)
    assert done.returncode == 0, done.output
    assert f"imports it as {folder}/network_of_command.py was when" in done.output
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


def test_modules_that_are_too_large_for_workers_to_get_are_an_error(run, script, folder):
    with (folder / "network_of_command.py").open("a") as module:
        module.write("#" * MOST_BYTES)
    lost = run(script, "fit", folder / "run.toml")
    assert lost.returncode == 1, lost.output
    node = socket.gethostname()
    assert f"node {node} do not find the module 'network_of_command'" in lost.output
    assert f"runcompss --pythonpath={folder}" in lost.output


def test_runcompss_with_the_files_of_configure_runs_its_python(tmp_path, monkeypatch):
    """An environment that is only on the PATH, such as conda's: no VIRTUAL_ENV, no flag."""
    if shutil.which("runcompss") is None:
        pytest.skip("needs COMPSs: there is no runcompss on the PATH")
    python = Path(sys.executable).with_name("python3")
    monkeypatch.setenv("PATH", f"{python.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    folder = tmp_path / "cluster"
    assert main(["configure", "--nodes", "2", "--units", "1", "--folder", str(folder)]) == 0
    command = [
        *("runcompss", "--lang=python", "--cpu_affinity=disabled"),
        *(f"--project={folder}/project.xml", f"--resources={folder}/resources.xml"),
        *(f"--log_dir={tmp_path}", f"--pythonpath={ROOT}", str(INSIDE / "interpreters.py")),
    ]
    with (tmp_path / "output.txt").open("w") as output:
        done = subprocess.run(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=tmp_path,
            timeout=LIMIT,
            start_new_session=True,
        )
    printed = (tmp_path / "output.txt").read_text()
    assert done.returncode == 0, printed
    assert f"interpreters ['{python}']" in printed
