"""The doctor on fake machines: this one, and nodes that are reached by ssh."""

import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from types import SimpleNamespace

import pytest

from compss_train.cli import doctor, main
from compss_train.engines.compss import configuration
from compss_train.engines.compss.configuration import WorkerNode
from tests.cli.fake_machine import FakeMachine, missing, states
from tests.helpers.processes import is_running
from tests.helpers.waiting import wait_until

HANGS = """#!{python}
import pathlib, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.alarm(60); signal.pause()"])
pathlib.Path({pids!r}, str(child.pid)).touch()
signal.alarm(60)
signal.pause()
"""


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A machine with torch, two cores with two threads each, and nothing of COMPSs but an empty
    folder.
    """
    fake = FakeMachine(tmp_path)
    monkeypatch.setenv("PATH", str(fake.bin))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COMPSS_HOME", str(fake.home))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(configuration, "DEFAULT_HOME", tmp_path / "none")
    monkeypatch.setattr(doctor, "util", SimpleNamespace(find_spec=lambda name: None))
    monkeypatch.setattr(doctor, "physical_cores", lambda: 2)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    return fake


@pytest.fixture
def machine(bare):
    bare.add_compss()
    return bare


def test_all_is_missing_on_an_empty_machine(bare, monkeypatch):
    monkeypatch.delenv("COMPSS_HOME")
    findings = bare.findings()
    assert missing(findings) == {"pycompss", "COMPSS_HOME", "java", "runcompss", "ssh to localhost"}
    assert all(findings[name].advice for name in missing(findings))
    assert states(findings, "Python", "torch", "numpy", "JAVA_HOME") == [
        "ok",
        "ok",
        "ok",
        "warning",
    ]


def test_nothing_is_missing_with_a_complete_compss(machine, monkeypatch):
    java_home = machine.folder / "jdk"
    (java_home / "bin").mkdir(parents=True)
    (machine.bin / "java").rename(java_home / "bin/java")
    monkeypatch.setenv("JAVA_HOME", str(java_home))
    findings = machine.findings()
    assert set(states(findings, *findings)) == {"ok"}
    assert findings["java"].found == 'openjdk version "17.0.1"'
    assert findings["runcompss"].found == f"3.3 at {machine.bin / 'runcompss'}"


def test_nothing_hangs(machine, monkeypatch):
    pids = machine.folder / "pids"
    pids.mkdir()
    for tool in ("java", "runcompss", "ssh", "nvidia-smi"):
        machine.add_program(tool, HANGS.format(python=sys.executable, pids=str(pids)))
    monkeypatch.setattr("compss_train.cli.findings.TIMEOUT", 0.5)
    monkeypatch.setattr(doctor, "SSH_TIMEOUT", 0.5)
    findings = machine.findings(WorkerNode("localhost", 2), nodes=("n1", "n2"))
    assert states(findings, "java", "runcompss", "ssh to n1", "ssh to n2") == ["missing"] * 4
    assert "no answer from" in findings["ssh to n1"].found
    # Killed with their parents, though the system may take a moment to say so.
    wait_until(lambda: not any(is_running(int(pid.name)) for pid in pids.iterdir()))


def test_output_and_exit_codes(machine, capsys):
    def printed(*options, code):
        assert main(["doctor", *options]) == code
        return capsys.readouterr().out

    compss = ("--engine", "compss")
    answer = json.loads(printed(*compss, "--json", code=0))
    assert (answer["engine"], answer["ready"]) == ("compss", True)
    assert {
        "name": "numpy",
        "state": "ok",
        "found": metadata.version("numpy"),
        "advice": "",
    } in answer["findings"]
    # Nodes and files are those of COMPSs.
    answer = json.loads(printed("--json", "--nodes", "nowhere", code=1))
    assert (answer["engine"], answer["ready"]) == ("compss", False)
    lines = printed(*compss, code=0).splitlines()
    assert lines[-1] == "The compss engine can run here."
    assert any(line.split() == ["ok", "numpy", metadata.version("numpy")] for line in lines)
    (machine.bin / "runcompss").unlink()
    out = printed(*compss, code=1)
    assert "cannot run here yet: see runcompss." in out
    assert "not on the PATH; install COMPSs" in out


def test_configure_writes_both_files(tmp_path, capsys):
    folder = tmp_path / "new" / "folder"
    assert main(["configure", "--nodes", "2", "--units", "3", "--folder", str(folder)]) == 0
    assert len(configuration.read_project(folder / "project.xml")) == 2
    printed = capsys.readouterr().out
    assert "127.0.0.2: 3 CPU units, 0 GPUs" in printed
    assert f"--python_interpreter={sys.executable}" in printed
    assert main(["configure", "--hosts", "n1, n2", "--gpus", "4", "--folder", str(folder)]) == 0
    assert [*configuration.read_resources(folder / "resources.xml")] == ["n1", "n2"]


def no_packages(machine, monkeypatch):
    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)


def off_the_path(machine, monkeypatch):
    (machine.home / "Runtime/scripts/user").mkdir(parents=True)


def other_python(machine, monkeypatch):
    machine.add_compss(suffix=".cpython-36m-x86_64-linux-gnu.so")


def broken_programs(machine, monkeypatch):
    machine.add_compss()
    machine.add_printing_program("runcompss", "ERROR: Cannot find Java", code=1)
    machine.add_program("java", "no program")
    machine.add_program("ssh", "#!/no/interpreter\n")
    monkeypatch.setenv("JAVA_HOME", str(machine.folder))


@pytest.mark.parametrize(
    ("break_machine", "name", "text"),
    [
        (no_packages, "torch", "pip install torch"),
        (no_packages, "numpy", "pip install numpy"),
        (other_python, "pycompss", "compiled as compss.cpython-36m"),
        (off_the_path, "runcompss", 'export PATH="{home}/Runtime/scripts/user:$PATH"'),
        (broken_programs, "runcompss", "ERROR: Cannot find Java"),
        (broken_programs, "java", "apt install default-jdk"),
        (broken_programs, "ssh to localhost", "ssh-copy-id localhost"),
    ],
)
def test_what_is_missing_is_found(bare, monkeypatch, break_machine, name, text):
    break_machine(bare, monkeypatch)
    finding = bare.findings()[name]
    assert finding.state == "missing"
    assert text.format(home=bare.home) in f"{finding.found}; {finding.advice}"


def test_versions_on_nodes_go_together_up_to_builds_and_patches(machine):
    versions = {"python": "3.6.0", "torch": "1.0", "compss_train": None}
    problems = {"compss_train": "ModuleNotFoundError: compss_train"}
    other = machine.add_python(**versions, java=False, compss=False, problems=problems)
    findings = machine.findings(nodes=("n1",), python=other)
    assert missing(findings) == {
        f"{name} on n1" for name in ("python", "torch", "compss_train", "java", "COMPSs")
    }
    assert findings["torch on n1"].found == f"1.0, but {metadata.version('torch')} here"
    torch = metadata.version("torch").split("+")[0]
    python = ".".join([*platform.python_version().split(".")[:2], "99"])
    findings = machine.findings(
        nodes=("n1",), python=machine.add_python(torch=f"{torch}+cu999", python=python)
    )
    assert states(findings, "torch on n1", "python on n1") == ["ok", "ok"]


def test_probe_in_a_real_python(machine, tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('libcudart is not there')")
    probe = doctor.probe_program(machine.home)
    environment = {"PYTHONPATH": str(tmp_path), "PATH": str(machine.bin)}
    options = {
        "input": probe,
        "capture_output": True,
        "text": True,
        "check": True,
        "env": environment,
    }
    seen = json.loads(subprocess.run([sys.executable, "-"], **options).stdout)
    assert seen["python"] == platform.python_version()
    assert (seen["torch"], seen["compss"], seen["java"], seen["gpus"]) == (None, True, True, 0)
    assert seen["problems"]["torch"] == "OSError: libcudart is not there"


@pytest.mark.parametrize(
    ("node", "there", "state"),
    [
        (WorkerNode("localhost", 2), {}, "ok"),
        (WorkerNode("127.0.0.1", 3), {}, "warning"),
        (WorkerNode("localhost", 5), {}, "missing"),
        (WorkerNode("n1", 48), {"cpus": 16}, "missing"),
        (WorkerNode("n1", 4), {"cpus": 16}, "ok"),
    ],
)
def test_units_are_compared_with_cores(machine, node, there, state):
    finding = machine.findings(node, python=machine.add_python(**there))[f"units of {node.name}"]
    assert finding.state == state
    assert ("configure" in finding.advice) == (state != "ok")
    assert ("--cpu_affinity=disabled" in finding.advice) == (state == "missing")


def test_the_units_of_compsss_default_file_are_compared(machine):
    assert "units of localhost" not in machine.findings()
    defaults = machine.home / doctor.DEFAULT_RESOURCES
    defaults.parent.mkdir(parents=True)
    defaults.write_text(configuration.resources_xml([WorkerNode("localhost", 4)]))
    assert "units of localhost" not in machine.findings()
    defaults.write_text(configuration.resources_xml([WorkerNode("localhost", 5)]))
    finding = machine.findings()["units of localhost"]
    assert finding.state == "warning"
    assert f"5 declared, 2 cores in {defaults}" in finding.found


NOTHING_THERE = {
    "python": "3.6.0",
    "torch": None,
    "compss_train": None,
    "cpus": 4,
    "gpus": 0,
    "java": True,
    "compss": True,
}
ANSWER = {
    "executable": "$0",
    "problems": {"torch": "in $PYTHONPATH", "compss_train": ""},
    **NOTHING_THERE,
}
PYTHON_OF_NODE = f"#!/bin/sh\ncat <<END\n{json.dumps(ANSWER)}\nEND\n"


def test_nodes_are_asked_by_the_way_of_their_workers(machine, monkeypatch, tmp_path):
    """The system's python3, that of an active virtual environment, or that of the project file."""
    monkeypatch.setenv("PATH", f"{machine.bin}:/usr/bin:/bin")
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.chdir(tmp_path)
    pythons = {}
    for name in ("system", "active", "written"):
        folder = tmp_path / name / "bin"
        folder.mkdir(parents=True)
        (folder / "activate").write_text(f"PATH={folder}:$PATH")
        (folder / "python3").write_text(PYTHON_OF_NODE)
        (folder / "python3").chmod(0o755)
        pythons[name] = folder / "python3"
    (machine.bin / "python3").symlink_to(pythons["system"])

    def asked(**request):
        finding = machine.findings(**request)["torch on localhost"]
        assert finding.state == "missing"
        assert f"in {tmp_path}:/mine" in finding.found
        return finding

    finding = asked(nodes=("localhost",))
    assert f"not importable by {machine.bin}/python3" in finding.found
    assert "compss-train configure" in finding.advice
    finding = asked(nodes=("localhost",), python=str(pythons["written"]))
    assert f"not importable by {pythons['written']}" in finding.found
    assert "compss-train configure" not in finding.advice
    project, _ = configuration.write(
        tmp_path / "files", [WorkerNode("localhost", 2)], python=str(pythons["written"])
    )
    assert str(pythons["written"]) in asked(project=project).found
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "active"))
    assert str(pythons["active"]) in asked(nodes=("localhost",)).found
