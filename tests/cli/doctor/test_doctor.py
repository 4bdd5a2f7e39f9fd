import json
import sys
import time
from importlib import metadata

import pytest

from compss_train.cli import main
from compss_train.cli.doctor import Request, nodes
from compss_train.engines.compss.configuration import WorkerNode, read_project, read_resources
from tests.cli.doctor.fake_machine import findings_by_name, states

HANGS = """#!{python}
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
pathlib.Path({pids!r}, str(child.pid)).touch()
time.sleep(60)
"""


def test_findings_on_an_empty_machine(machine, monkeypatch):
    monkeypatch.delenv("COMPSS_HOME")
    findings = findings_by_name()
    missing = {name for name, finding in findings.items() if finding.state == "missing"}
    assert missing == {"pycompss", "COMPSS_HOME", "java", "runcompss", "ssh to localhost"}
    assert all(findings[name].advice for name in missing)
    assert states(findings, "Python", "torch", "numpy") == ["ok"] * 3
    assert states(findings, "JAVA_HOME") == ["warning"]


def test_findings_with_a_complete_compss(machine, monkeypatch):
    machine.add_compss()
    java_home = machine.folder / "jdk"
    (java_home / "bin").mkdir(parents=True)
    (java_home / "lib/server").mkdir(parents=True)
    (java_home / "lib/server/libjvm.so").touch()
    (machine.bin / "java").rename(java_home / "bin/java")
    monkeypatch.setenv("JAVA_HOME", str(java_home))
    findings = findings_by_name()
    assert "missing" not in states(findings, *findings)
    assert findings["java"].found == 'openjdk version "17.0.1"'
    assert findings["runcompss"].found == f"3.3 at {machine.bin / 'runcompss'}"
    assert states(findings, "JAVA_HOME", "COMPSS_HOME") == ["ok", "ok"]


def test_nothing_hangs(machine, monkeypatch):
    pids = machine.folder / "pids"
    pids.mkdir()
    machine.add_compss()
    for tool in ("java", "runcompss", "ssh", "nvidia-smi"):
        machine.add_program(tool, HANGS.format(python=sys.executable, pids=str(pids)))
    monkeypatch.setattr(nodes, "TIMEOUT", 0.5)
    monkeypatch.setattr(nodes, "SSH_TIMEOUT", 0.5)
    _, resources = machine.write_files(WorkerNode("localhost", 2))
    before = time.monotonic()
    findings = findings_by_name(Request(resources=resources, nodes=("n1", "n2")))
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


def test_output_and_exit_codes(machine, capsys):
    machine.add_compss()
    assert main(["doctor", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ready"] is True
    assert {"name": "numpy", "state": "ok", "found": metadata.version("numpy"), "advice": ""} in answer["findings"]
    assert main(["doctor", "--json", "--nodes", "nowhere"]) == 1
    assert json.loads(capsys.readouterr().out)["ready"] is False
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "The compss engine can run here."
    assert any(line.split() == ["ok", "numpy", metadata.version("numpy")] for line in lines)
    (machine.bin / "runcompss").unlink()
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "cannot run here yet: see runcompss." in out
    assert "not on the PATH; install COMPSs" in out


def test_configure_writes_both_files(tmp_path, capsys):
    folder = tmp_path / "new" / "folder"
    assert main(["configure", "--nodes", "2", "--units", "3", "--folder", str(folder)]) == 0
    assert len(read_project(folder / "project.xml")) == 2
    assert "127.0.0.2: 3 CPU units, 0 GPUs" in capsys.readouterr().out
    assert main(["configure", "--hosts", "n1, n2", "--gpus", "4", "--folder", str(folder)]) == 0
    assert [*read_resources(folder / "resources.xml")] == ["n1", "n2"]


def no_packages(machine, monkeypatch):
    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)


def other_python(machine, monkeypatch):
    machine.add_compss(suffix=".cpython-36m-x86_64-linux-gnu.so")


def failing_runcompss(machine, monkeypatch):
    machine.add_compss()
    machine.add_printing_program("runcompss", "ERROR: Cannot find Java", code=1)


def off_the_path(machine, monkeypatch):
    (machine.home / "Runtime/scripts/user").mkdir(parents=True)


def broken_programs(machine, monkeypatch):
    machine.add_compss()
    machine.add_program("java", "no program")
    machine.add_program("ssh", "#!/no/interpreter\n")


def java_home_without_java(machine, monkeypatch):
    machine.add_compss()
    monkeypatch.setenv("JAVA_HOME", str(machine.folder))


@pytest.mark.parametrize(
    ("break_machine", "missing", "text"),
    [
        (no_packages, "torch", "pip install torch"),
        (no_packages, "numpy", "pip install numpy"),
        (other_python, "pycompss", "compiled as compss.cpython-36m"),
        (failing_runcompss, "runcompss", "ERROR: Cannot find Java"),
        (off_the_path, "runcompss", 'export PATH="{home}/Runtime/scripts/user:$PATH"'),
        (broken_programs, "java", "apt install default-jdk"),
        (broken_programs, "ssh to localhost", "ssh-copy-id localhost"),
        (java_home_without_java, "JAVA_HOME", "apt install default-jdk"),
    ],
)
def test_what_is_missing_is_found(machine, monkeypatch, break_machine, missing, text):
    break_machine(machine, monkeypatch)
    finding = findings_by_name()[missing]
    assert finding.state == "missing"
    assert text.format(home=machine.home) in f"{finding.found}; {finding.advice}"
