"""Tasks get the resources that they need, and more than the nodes have is an error instead of an endless wait."""

import json
import re

import torch


def test_declared_gpus_are_bound_and_more_are_an_error(run, tmp_path):
    done = run("gpus.py", tmp_path / "result.json", flags=("--gpus=2",))
    assert done.returncode == 0, done.output
    result = json.loads((tmp_path / "result.json").read_text())
    expected = r"[01]" if torch.cuda.is_available() else r"COMPSs bound GPU [01] of \S+ to this task.*"
    assert len(result["gpus"]) == 3
    assert all(re.fullmatch(expected, text) for text in result["gpus"])
    assert "have 2 GPUs on 1 nodes" in result["too many GPUs"]
    assert result["too many units"].startswith(
        "a task asks for 99 CPUs and the largest node has 2; use fewer threads"
    )
