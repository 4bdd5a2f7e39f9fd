"""JSON and TOML that are nested too deeply for Python are damaged files, and no RecursionError."""

import numpy as np
import pytest

from compss_train import BadCheckpointError, BadFileError
from compss_train.cli.run_files import RunFileError, read_toml
from compss_train.net.messages import MessageError, unpack
from compss_train.reports.history import History
from compss_train.training.checkpoints import STATE, read_checkpoint, write_checkpoint

DEEP = "[" * 100_000 + "]" * 100_000


def test_a_checkpoint(tmp_path):
    write_checkpoint(tmp_path / "round-000000", {"x": np.zeros(2)})
    (tmp_path / "round-000000" / STATE).write_text(DEEP)
    with pytest.raises(BadCheckpointError, match=r"state\.json is damaged: .*recursion"):
        read_checkpoint(tmp_path / "round-000000")


def test_a_history(tmp_path):
    path = tmp_path / "history.jsonl"
    path.write_text(f'{{"round": {DEEP}}}\n')
    with pytest.raises(BadFileError, match="no record of a round in line 1"):
        History.load(path)


def test_a_message():
    with pytest.raises(MessageError):
        unpack([DEEP.encode()])


def test_a_run_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(f"x = {DEEP}")
    with pytest.raises(RunFileError, match=r"is not valid TOML: .*recursion"):
        read_toml(path)
