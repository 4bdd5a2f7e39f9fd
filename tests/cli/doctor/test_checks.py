import sys
import time

from compss_train.cli import doctor
from compss_train.cli.doctor import Request, tools
from compss_train.cli.doctor import tools as ssh
from compss_train.engines.compss.configuration import Node
from tests.cli.doctor.machine import found, states

HANGS = """#!{python}
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
pathlib.Path({pids!r}, str(child.pid)).touch()
time.sleep(60)
"""


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


def test_nothing_hangs(machine, monkeypatch):
    pids = machine.folder / "pids"
    pids.mkdir()
    machine.compss()
    for tool in ("java", "runcompss", "ssh", "nvidia-smi"):
        machine.tool(tool, HANGS.format(python=sys.executable, pids=str(pids)))
    monkeypatch.setattr(tools, "SECONDS", 0.5)
    monkeypatch.setattr(ssh, "SSH_SECONDS", 0.5)
    _, resources = machine.files(Node("localhost", 2))
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
