"""A small run file, a run of it, and the command called in this process."""

import re
import shutil
from types import SimpleNamespace

import pytest

from compss_train.cli import main

RUN_FILE = """
[trainer]
num_workers = 2
engine = "serial"
threads = 1
seed = 3

[network]
import = "tests.helpers.models:mlp"

[data]
import = "tests.cli.user_objects:data"
blocks = 4

[validation]
fraction = 0.25

[build]
optimizer = { optimizer = "sgd", lr = 0.05, momentum = 0.9 }
loss = "cross_entropy"
metric = "accuracy"

[fit]
num_epochs = 3
batch_size = 8
progress = false

[output]
report = false
"""


@pytest.fixture
def run_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.toml"
    path.write_text(RUN_FILE)
    return path


@pytest.fixture
def command(capsys):
    """Run the command with settings, check its exit code and return its output."""

    def run(*arguments, code=0, settings=()):
        arguments = [*arguments, *(part for setting in settings for part in ("--set", setting))]
        capsys.readouterr()
        try:
            returned = main([str(argument) for argument in arguments])
        except SystemExit as end:
            returned = end.code
        printed = capsys.readouterr()
        assert returned == code, printed.err
        return SimpleNamespace(out=printed.out, err=re.sub(r"\s+", " ", printed.err))

    return run


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The folder of a completed run, which tests copy."""
    path = tmp_path_factory.mktemp("trained") / "small.toml"
    path.write_text(RUN_FILE)
    assert main(["fit", str(path)]) == 0
    return path.parent / "runs" / "small"


@pytest.fixture
def fitted(run_file, trained):
    """The folder of a completed run of the run file."""
    folder = run_file.parent / "runs" / "small"
    shutil.copytree(trained, folder)
    config = folder / "config.toml"
    config.write_text(config.read_text().replace(str(trained.parents[1]), str(run_file.parent)))
    return folder
