import platform
from importlib import metadata

from compss_train.cli.doctor import Request
from compss_train.engines.compss.configuration import Node
from tests.cli.doctor.machine import found, states


def test_nodes(machine):
    machine.compss()
    findings = found(Request(nodes=("n1", "nowhere"), python=str(machine.python())))
    names = ("ssh to n1", "python on n1", "torch on n1", "compss_train on n1", "COMPSs on n1")
    assert states(findings, *names) == ["ok"] * 5
    assert findings["ssh to nowhere"].found == "ssh: cannot resolve nowhere"
    assert "ssh-copy-id nowhere" in findings["ssh to nowhere"].advice
    assert "torch on nowhere" not in findings


def test_node_with_other_things(machine):
    machine.compss()
    problems = {"compss_train": "ModuleNotFoundError: compss_train", "/home/me": "disk full"}
    seen = {
        "python": "3.6.0",
        "torch": "1.0",
        "compss_train": None,
        "java": False,
        "compss": False,
        "open_files": 64,
    }
    python = machine.python(**seen, problems=problems)
    findings = found(Request(nodes=("n1",), python=str(python)))
    expected = {"python", "torch", "compss_train", "java", "COMPSs", "/home/me"}
    missing = {name for name, finding in findings.items() if finding.state == "missing"}
    assert missing == {f"{name} on n1" for name in expected}
    assert findings["torch on n1"].found == f"1.0, but {metadata.version('torch')} here"
    assert states(findings, "open files on n1") == ["warning"]


def test_builds_of_one_version_and_patch_releases_go_together(machine):
    machine.compss()
    torch = metadata.version("torch").split("+")[0]
    python = ".".join([*platform.python_version().split(".")[:2], "99"])
    there = machine.python(torch=f"{torch}+cu999", python=python)
    findings = found(Request(nodes=("n1",), python=str(there)))
    assert states(findings, "torch on n1", "python on n1") == ["ok", "ok"]


def test_node_has_fewer_cores_than_declared(machine):
    machine.compss()
    project, resources = machine.files(Node("n1", 48, gpus=4))
    findings = found(Request(project, resources, python=str(machine.python(cpus=16, gpus=4))))
    assert states(findings, "units of n1", "GPUs of n1") == ["missing", "ok"]


def test_node_without_python(machine):
    machine.compss()
    findings = found(Request(nodes=("n1",), python="/no such/python"))
    assert states(findings, "Python on n1") == ["missing"]
    assert "/no such/python" in findings["Python on n1"].found
