"""Tasks get the resources that they need, and more than the nodes have is an error instead of an endless wait."""

import json
import os
import re

import torch


def test_declared_gpus_are_bound_and_more_are_an_error(run, tmp_path):
    done = run("gpus.py", tmp_path / "result.json", flags=("--gpus=4",))
    assert done.returncode == 0, done.output
    result = json.loads((tmp_path / "result.json").read_text())
    expected = r"[0-3]" if torch.cuda.is_available() else r"COMPSs bound GPU [0-3] of \S+ to this task.*"
    assert len(result["gpus"]) == 3
    assert all(re.fullmatch(expected, text) for text in result["gpus"])
    assert "the compss engine has 4 GPUs" in result["too many GPUs"]
    assert result["too many units"].startswith(
        "a task asks for 99 CPUs and the largest node has 2; use fewer threads"
    )


def test_more_units_than_cores_run_as_many_tasks(run, tmp_path):
    """COMPSs binds units to cores by itself, and tasks beyond the cores die: the error says so."""
    units = (os.cpu_count() or 1) + 3
    (folder := tmp_path / "meeting").mkdir()
    done = run("crowded.py", folder, units, flags=(f"--units={units}",))
    assert done.returncode == 0, done.output
    assert f"met {[units] * units}" in done.output
    done = run("crowded.py", folder, units, flags=(f"--units={units}", "--cpu_affinity=automatic"))
    assert done.returncode == 1, done.output
    assert "WorkerLostError: COMPSs lost a task: its worker process died" in done.output
