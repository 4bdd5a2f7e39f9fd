import json
import os
import platform
import subprocess
import sys
import sysconfig
import time
from importlib import metadata
from types import SimpleNamespace

import pytest

from compss_train import __version__, doctor, launch
from compss_train.cli import main
from compss_train.doctor import Request, examine

# A login as sshd makes it: the words of the command joined with blanks, in a shell.
SSH = """#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
host=$1; shift
if [ "$host" = nowhere ]; then echo "ssh: cannot resolve nowhere" >&2; exit 255; fi
exec /bin/sh -c "$*"
"""
HANGS = """#!{python}
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
pathlib.Path({pids!r}, str(child.pid)).touch()
time.sleep(60)
"""


class Machine:
    """A machine with no more tools than a test puts there."""

    def __init__(self, folder):
        self.folder = folder
        self.bin = folder / "bin"
        self.home = folder / "COMPSs"
        self.bin.mkdir()

    def tool(self, name, text):
        path = self.bin / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def says(self, name, *lines, code=0):
        return self.tool(name, "#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines) + f"exit {code}\n")

    def compss(self, suffix=None):
        """Put a whole COMPSs there."""
        binding = self.home / "Bindings/python/3"
        (binding / "pycompss").mkdir(parents=True)
        (binding / f"compss{suffix or sysconfig.get_config_var('EXT_SUFFIX')}").touch()
        starter = self.home / "Runtime/scripts/system/adaptors/nio/persistent_worker.sh"
        starter.parent.mkdir(parents=True)
        starter.touch()
        self.says("java", 'openjdk version "17.0.1"')
        self.says("runcompss", "COMPSs version 3.3 Orchid", " ")
        self.tool("ssh", SSH)

    def python(self, **seen):
        """Put a Python there that answers the probe so."""
        answer = {
            "python": platform.python_version(),
            "torch": metadata.version("torch"),
            "compss_train": __version__,
        }
        answer |= {"cpus": 4, "gpus": 0, "java": True, "compss": True, "open_files": 4096, "problems": {}} | seen
        return self.says("python-there", "Welcome to this machine!", json.dumps(answer))

    def files(self, *nodes):
        return launch.write(self.folder / "files", nodes, install_dir=self.home)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    made = Machine(tmp_path)
    monkeypatch.setenv("PATH", str(made.bin))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COMPSS_HOME", str(made.home))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(doctor, "DEFAULT_HOME", tmp_path / "none")
    monkeypatch.setattr(doctor, "util", SimpleNamespace(find_spec=lambda name: None))
    monkeypatch.setattr(doctor, "physical_cores", lambda: 2)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    return made


def found(request=Request()):  # noqa: B008 - frozen
    return {finding.name: finding for finding in examine(request)}


def states(findings, *names):
    return [findings[name].state for name in names]


def test_nothing_there(machine, monkeypatch):
    monkeypatch.delenv("COMPSS_HOME")
    findings = found()
    missing = {name for name, finding in findings.items() if finding.state == "missing"}
    assert missing == {"pycompss", "COMPSS_HOME", "java", "runcompss", "ssh to localhost"}
    assert all(findings[name].advice for name in missing)
    assert states(findings, "Python", "torch", "numpy", "/tmp", "~/.COMPSs") == ["ok"] * 5
    assert states(findings, "enqueue_compss", "dot") == ["note", "note"]
    assert states(findings, "JAVA_HOME") == ["warning"]


def test_all_there(machine, monkeypatch):
    machine.compss()
    machine.says("dot")
    java_home = machine.folder / "jdk"
    (java_home / "bin").mkdir(parents=True)
    (java_home / "lib/server").mkdir(parents=True)
    (java_home / "lib/server/libjvm.so").touch()
    (machine.bin / "java").rename(java_home / "bin/java")
    monkeypatch.setenv("JAVA_HOME", str(java_home))
    findings = found()
    assert doctor.ready(findings.values())
    assert findings["java"].found == 'openjdk version "17.0.1"'
    assert findings["runcompss"].found == f"3.3 at {machine.bin / 'runcompss'}"
    assert states(findings, "JAVA_HOME", "dot", "enqueue_compss") == ["ok", "ok", "note"]


def test_java_home_without_java(machine, monkeypatch):
    machine.compss()
    monkeypatch.setenv("JAVA_HOME", str(machine.folder))
    findings = found()
    assert states(findings, "JAVA_HOME") == ["missing"]
    assert "apt install default-jdk" in findings["JAVA_HOME"].advice


def test_packages_that_are_not_installed(machine, monkeypatch):
    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.metadata, "version", version)
    findings = found()
    assert [findings[name].advice for name in ("torch", "numpy")] == ["pip install torch", "pip install numpy"]


def test_pycompss_of_another_python(machine):
    machine.compss(suffix=".cpython-36m-x86_64-linux-gnu.so")
    findings = found()
    assert states(findings, "pycompss") == ["missing"]
    assert "compiled as compss.cpython-36m" in findings["pycompss"].found


def test_runcompss_off_the_path(machine):
    scripts = machine.home / "Runtime/scripts/user"
    scripts.mkdir(parents=True)
    assert found()["runcompss"].advice == f'export PATH="{scripts}:$PATH"'


def test_runcompss_that_fails(machine):
    machine.compss()
    machine.says("runcompss", "ERROR: Cannot find Java", code=1)
    findings = found()
    assert states(findings, "runcompss") == ["missing"]
    assert "ERROR: Cannot find Java" in findings["runcompss"].found


def test_tools_that_cannot_be_run(machine):
    machine.compss()
    machine.tool("java", "no program")
    machine.tool("ssh", "#!/no/interpreter\n")
    assert states(found(), "java", "ssh to localhost") == ["missing", "missing"]


def test_folder_that_cannot_be_written(machine, monkeypatch):
    monkeypatch.setenv("HOME", "/proc/1")
    finding = found()["~/.COMPSs"]
    assert finding.state == "missing"
    assert "not writable" in finding.found


def test_open_files():
    assert [doctor._open_files("files", limit).state for limit in (256, 1024, -1)] == ["warning", "ok", "ok"]


@pytest.mark.parametrize(
    ("node", "state"),
    [
        (launch.Node("localhost", 2), "ok"),
        (launch.Node("127.0.0.1", 3), "warning"),
        (launch.Node("localhost", 5), "missing"),
        (launch.Node("localhost", 2, gpus=1), "missing"),
    ],
)
def test_units_and_gpus_that_are_declared(machine, node, state):
    machine.compss()
    project, resources = machine.files(node)
    findings = found(Request(project, resources, ("localhost",), str(machine.python())))
    name = f"{'GPUs' if node.gpus else 'units'} of {node.name}"
    assert states(findings, name) == [state]
    assert ("configure" in findings[name].advice) == (state != "ok")
    assert states(findings, "project file", "resources file") == ["ok", "ok"]


def test_gpus_that_are_there(machine):
    machine.compss()
    machine.says("nvidia-smi", "GPU 0: A (UUID: x)", "GPU 1: A (UUID: y)")
    for gpus, state in ((2, "ok"), (1, "note"), (3, "missing")):
        _, resources = machine.files(launch.Node("localhost", 2, gpus))
        assert states(found(Request(resources=resources)), "GPUs of localhost") == [state]


def test_more_workers_than_cores(machine):
    machine.compss()
    _, resources = machine.files(*launch.loopback_nodes(2, units=2))
    findings = found(Request(resources=resources))
    assert findings["units of this machine"].found == "4 in all, 2 physical cores"
    assert doctor.ready(findings.values())


def test_default_resources_of_compss(machine):
    machine.compss()
    default = machine.home / "Runtime/configuration/xml/resources/default_resources.xml"
    default.parent.mkdir(parents=True)
    default.write_text(launch.resources_xml(launch.loopback_nodes(1, units=8)))
    findings = found()
    assert states(findings, "units of localhost") == ["warning"]
    assert "COMPSs's own" in findings["units of localhost"].found


def test_files_that_are_wrong(machine):
    machine.compss()
    project, resources = machine.files(launch.Node("localhost", 1))
    broken, other = machine.folder / "broken.xml", machine.folder / "other.xml"
    broken.write_text("<ResourcesList>")
    other.write_text(launch.resources_xml([launch.Node("elsewhere", 1)]))
    assert states(found(Request(machine.folder / "none.xml", broken)), "project file", "resources file") == [
        "missing",
        "missing",
    ]
    findings = found(Request(project, other, python=str(machine.python())))
    assert findings["nodes"].found == "localhost of the project file not in the resources file"
    assert "nodes" not in found(Request(project, resources, python=str(machine.python())))


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
    project, resources = machine.files(launch.Node("n1", 48, gpus=4))
    findings = found(Request(project, resources, python=str(machine.python(cpus=16, gpus=4))))
    assert states(findings, "units of n1", "GPUs of n1") == ["missing", "ok"]


def test_node_without_python(machine):
    machine.compss()
    findings = found(Request(nodes=("n1",), python="/no such/python"))
    assert states(findings, "Python on n1") == ["missing"]
    assert "/no such/python" in findings["Python on n1"].found


def test_probe_in_a_real_python(machine, tmp_path):
    machine.compss()
    (tmp_path / "torch.py").write_text("raise OSError('libcudart is not there')")
    probe = doctor._probe(Request(), "n1")
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


def test_nothing_hangs(machine, monkeypatch):
    pids = machine.folder / "pids"
    pids.mkdir()
    machine.compss()
    for tool in ("java", "runcompss", "ssh", "nvidia-smi"):
        machine.tool(tool, HANGS.format(python=sys.executable, pids=str(pids)))
    for limit in ("SECONDS", "SSH_SECONDS"):
        monkeypatch.setattr(doctor, limit, 0.5)
    _, resources = machine.files(launch.Node("localhost", 2))
    before = time.monotonic()
    findings = found(Request(resources=resources, nodes=("n1", "n2")))
    assert time.monotonic() - before < 10
    assert states(findings, "java", "runcompss", "ssh to n1", "ssh to n2") == ["missing"] * 4
    assert "no answer from" in findings["ssh to n1"].found
    # Killed with their parents, though the system may take a moment to say so.
    while any(_runs(int(pid.name)) for pid in pids.iterdir()):
        assert time.monotonic() - before < 20
        time.sleep(0.05)


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_command(machine, capsys):
    machine.compss()
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "The compss engine can run here."
    assert any(line.split() == ["ok", "numpy", metadata.version("numpy")] for line in lines)
    (machine.bin / "runcompss").unlink()
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "cannot run here yet: see runcompss." in out
    assert "not on the PATH; install COMPSs" in out


def test_json(machine, capsys):
    machine.compss()
    assert main(["doctor", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ready"] is True
    assert {"name": "numpy", "state": "ok", "found": metadata.version("numpy"), "advice": ""} in answer["findings"]
    assert main(["doctor", "--json", "--nodes", "nowhere"]) == 1
    assert json.loads(capsys.readouterr().out)["ready"] is False


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["doctor", "--help"]])
def test_version_and_help(arguments, capsys):
    with pytest.raises(SystemExit, match="0"):
        main(arguments)
    assert capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["cure"], ["doctor", "--nodes", "a,,b"]])
def test_bad_arguments(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "usage: compss-train" in capsys.readouterr().err
