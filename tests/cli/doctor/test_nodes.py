import json
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from compss_train.cli.doctor import Request
from compss_train.cli.doctor.nodes import probe_program
from compss_train.engines.compss.worker_nodes import WorkerNode
from tests.cli.doctor.fake_machine import findings_by_name, states


def test_a_complete_node_and_an_unknown_host(machine):
    machine.add_compss()
    findings = findings_by_name(Request(nodes=("n1", "nowhere"), python=str(machine.add_python())))
    names = ("ssh to n1", "python on n1", "torch on n1", "compss_train on n1", "COMPSs on n1")
    assert states(findings, *names) == ["ok"] * 5
    assert findings["ssh to nowhere"].found == "ssh: cannot resolve nowhere"
    assert "ssh-copy-id nowhere" in findings["ssh to nowhere"].advice
    assert "torch on nowhere" not in findings


def test_node_with_other_versions_and_nothing_else(machine):
    machine.add_compss()
    problems = {"compss_train": "ModuleNotFoundError: compss_train", "/home/me": "disk full"}
    seen = {
        "python": "3.6.0",
        "torch": "1.0",
        "compss_train": None,
        "java": False,
        "compss": False,
        "open_files": 64,
    }
    python = machine.add_python(**seen, problems=problems)
    findings = findings_by_name(Request(nodes=("n1",), python=str(python)))
    expected = {"python", "torch", "compss_train", "java", "COMPSs", "/home/me"}
    missing = {name for name, finding in findings.items() if finding.state == "missing"}
    assert missing == {f"{name} on n1" for name in expected}
    assert findings["torch on n1"].found == f"1.0, but {metadata.version('torch')} here"
    assert states(findings, "open files on n1") == ["warning"]


def test_builds_of_one_version_and_patch_releases_go_together(machine):
    machine.add_compss()
    torch = metadata.version("torch").split("+")[0]
    python = ".".join([*platform.python_version().split(".")[:2], "99"])
    there = machine.add_python(torch=f"{torch}+cu999", python=python)
    findings = findings_by_name(Request(nodes=("n1",), python=str(there)))
    assert states(findings, "torch on n1", "python on n1") == ["ok", "ok"]


def test_node_has_fewer_cores_than_declared(machine):
    machine.add_compss()
    project, resources = machine.write_files(WorkerNode("n1", 48, gpus=4))
    findings = findings_by_name(Request(project, resources, python=str(machine.add_python(cpus=16, gpus=4))))
    assert states(findings, "units of n1", "GPUs of n1") == ["missing", "ok"]


def test_node_without_python(machine):
    machine.add_compss()
    findings = findings_by_name(Request(nodes=("n1",), python="/no such/python"))
    assert states(findings, "Python on n1") == ["missing"]
    assert "/no such/python" in findings["Python on n1"].found


def test_probe_in_a_real_python(machine, tmp_path):
    machine.add_compss()
    (tmp_path / "torch.py").write_text("raise OSError('libcudart is not there')")
    probe = probe_program(Request(), "n1")
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
    assert f"sys.path.append({str(Path(__file__).parents[3])!r})" in probe
