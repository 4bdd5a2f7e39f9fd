"""Signals that end a program on Ray, which has handlers of its own."""

import os
import signal
import subprocess
import sys

import pytest

from tests.compss.conftest import INSIDE
from tests.helpers.processes import ROOT


@pytest.mark.parametrize("is_joined_before", [False, True])
def test_sigterm_stops_a_fit_although_ray_has_a_handler(tmp_path, is_joined_before):
    join = "ray.init(num_cpus=1, include_dashboard=False)" if is_joined_before else ""
    program = f"""
import ray, runpy, sys
{join}
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    path = INSIDE / "resumed.py"
    done = subprocess.run(
        [sys.executable, "-c", program, path, tmp_path, "3", str(int(signal.SIGTERM))],
        env={**os.environ, "COMPSS_TRAIN_ENGINE": "ray", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 143, done.stderr
    assert "fit interrupted by SIGTERM; last complete round: 3" in done.stderr
