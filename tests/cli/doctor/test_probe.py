import json
import platform
import subprocess
import sys

from compss_train.cli.doctor import Request
from compss_train.cli.doctor.nodes import program


def test_probe_in_a_real_python(machine, tmp_path):
    machine.compss()
    (tmp_path / "torch.py").write_text("raise OSError('libcudart is not there')")
    probe = program(Request(), "n1")
    done = subprocess.run(
        [sys.executable, "-"],
        input=probe,
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(tmp_path), "PATH": str(machine.bin), "HOME": "/nowhere"},
    )
    seen = json.loads(done.stdout)
    assert seen["python"] == platform.python_version()
    assert (seen["torch"], seen["compss"], seen["java"], seen["gpus"]) == (None, True, True, 0)
    assert seen["problems"]["torch"] == "OSError: libcudart is not there"
    assert "/nowhere" in seen["problems"]
