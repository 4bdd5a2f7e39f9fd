"""A run that is killed at any moments, and started again each time, ends with the bits of one that was not."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.documents import ROOT


def killed(folder: Path, processes: int, every: int, kills: int, seconds: float) -> int:
    """Return after how many different rounds it was killed."""
    script = [sys.executable, "-m", "tests.helpers.kill_fits_program", folder, processes, every, kills, seconds]
    done = subprocess.run(list(map(str, script)), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    times, rounds = map(int, done.stdout.split())
    assert times == kills
    return rounds


def test_killed_five_times_on_processes_and_without(tmp_path):
    assert killed(tmp_path, processes=1, every=99, kills=5, seconds=0.02) > 2


@pytest.mark.slow
@pytest.mark.parametrize(("every", "kills", "seconds"), [(1, 30, 0.04), (99, 60, 0.02)])
def test_killed_dozens_of_times(tmp_path, every, kills, seconds):
    killed(tmp_path, 2, every, kills, seconds)
