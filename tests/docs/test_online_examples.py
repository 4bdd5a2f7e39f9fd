"""What docs/online.md prints works as printed."""

import os
import re
import shutil
import socket
import subprocess
import sys

import pytest

from tests.helpers.documents import ROOT, python_blocks

DOCUMENT = ROOT / "docs/online.md"


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)


def free_address():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{taken.getsockname()[1]}"


def test_the_examples_run(run_blocks):
    loss, repetitions = map(float, run_blocks(python_blocks("docs/online.md")).split())
    assert loss < 0.3
    assert repetitions >= 1


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_solvers_in_c_and_python_send_side_by_side(run_blocks, tmp_path):
    address = free_address()
    (tmp_path / "solver.c").write_text(blocks("c")[0])
    subprocess.run(["cc", "-o", "solver", "solver.c", "-lm"], cwd=tmp_path, check=True)
    command = blocks("sh")[0].splitlines()[2].replace("compss-train", f"{sys.executable} -m compss_train")
    fit, send, plain = (text.replace("tcp://127.0.0.1:5555", address) for text in blocks("python notest"))
    environment = {**os.environ, "COMPSS_TRAIN_TOKEN": "ours alone"}
    solver = subprocess.Popen(
        command.replace("tcp://127.0.0.1:5555", address), shell=True, cwd=tmp_path, env=environment
    )
    samples = "import numpy as np\nsamples = [(np.zeros(2, np.float32), np.zeros(1, np.float32))] * 200\n"
    (tmp_path / "send.py").write_text(samples + send.replace("solver 1", "solver 2"))
    sender = subprocess.Popen([sys.executable, "send.py"], cwd=tmp_path)
    assert "compss_train" not in plain
    (tmp_path / "plain.py").write_text(plain)
    bare = subprocess.Popen([sys.executable, "plain.py"], cwd=tmp_path)
    begun = python_blocks("docs/online.md")[0].partition("parameters =")[0]
    ended = "print(trainer.history[-1]['received'], trainer.history[-1]['repetitions'][0])"
    printed = run_blocks([begun, fit.replace("senders=1", "senders=3"), ended])
    assert printed.split() == ["2200", "0"]
    assert (solver.wait(20), sender.wait(20), bare.wait(20)) == (0, 0, 0)
