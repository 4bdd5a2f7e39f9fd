"""Fits that were killed or terminated resume with the bits of an uninterrupted fit."""

import signal

import pytest

from compss_train.model import parameters
from compss_train.training.checkpoints import list_checkpoints
from tests.compss.inside.resumed import fit
from tests.helpers.models import assert_same_bits


@pytest.mark.timeout(200)
def test_killed_and_terminated_fits_resume_bit_for_bit(run, tmp_path):
    killed = run("resumed.py", tmp_path, 2, signal.SIGKILL.value, seconds=60)
    assert killed.returncode != 0, killed.output
    # The signal comes before the checkpoint of its round.
    assert max(list_checkpoints(tmp_path / "checkpoints")) == 1
    terminated = run("resumed.py", tmp_path, 4, signal.SIGTERM.value, seconds=60)
    assert terminated.returncode != 0, terminated.output
    assert "fit interrupted by SIGTERM" in terminated.output
    assert max(list_checkpoints(tmp_path / "checkpoints")) == 4
    finished = run("resumed.py", tmp_path, seconds=60)
    assert finished.returncode == 0, finished.output
    assert "round-000004 on compss" in finished.output
    assert_same_bits(parameters.load(tmp_path / "trained.npz"), fit(tmp_path / "apart", "serial", [])[0])
