"""What tasks ask for is what they get, and what the nodes do not have is refused before COMPSs waits for it."""

import json
import re

import torch


def test_gpus_are_bound_where_declared_and_refused_where_not(run, tmp_path):
    done = run("gpus.py", tmp_path / "result.json", flags=("--gpus=2",))
    assert done.returncode == 0, done.output
    result = json.loads((tmp_path / "result.json").read_text())
    expected = r"[01]" if torch.cuda.is_available() else r"COMPSs bound GPU [01] of \S+ to this task.*"
    assert len(result["told"]) == 3
    assert all(re.fullmatch(expected, text) for text in result["told"])
    assert "have 2 GPUs on 1 nodes" in result["refused"]
    assert result["units"].startswith("a task asks for 99 CPUs and the largest node has 2; use fewer threads")
