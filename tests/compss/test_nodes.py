"""Training on two nodes, which exchange blocks and parameters, gives the result of one process."""

import json
import re
import subprocess
import sys
from pathlib import Path

INSIDE = Path(__file__).parent / "inside"
OPTIONS = ("workers=4", "blocks=8", "num_epochs=3", "hidden=64", "shuffles=blocks,total")


def used_nodes(done):
    """Return the nodes on which jobs ended, from COMPSs's log."""
    ended = re.findall(r"JOB_RESULT.*?file:///\S*/(127\.0\.0\.\d)/", (done.log / "runtime.log").read_text())
    return set(ended)


def test_two_nodes_train_to_the_same_bits_as_one_process(run, tmp_path):
    done = run("fit.py", tmp_path / "ours.json", *OPTIONS, flags=("--nodes=2", "--units=1", "--log_level=debug"))
    assert done.returncode == 0, done.output
    plain = [sys.executable, str(INSIDE / "fit.py"), str(tmp_path / "theirs.json"), *OPTIONS, "engine=serial"]
    subprocess.run(plain, check=True, timeout=60)
    ours, theirs = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("ours", "theirs"))
    assert ours["digest"] == theirs["digest"]
    assert ours["losses"] == theirs["losses"]
    assert used_nodes(done) == {"127.0.0.1", "127.0.0.2"}
