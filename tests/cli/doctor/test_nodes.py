import json
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from compss_train.cli.doctor import Request
from compss_train.cli.doctor.nodes import probe_program
from compss_train.engines.compss.configuration import WorkerNode, loopback_nodes, resources_xml
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
    problems = {"compss_train": "ModuleNotFoundError: compss_train"}
    versions = {"python": "3.6.0", "torch": "1.0", "compss_train": None}
    python = machine.add_python(**versions, java=False, compss=False, problems=problems)
    findings = findings_by_name(Request(nodes=("n1",), python=str(python)))
    expected = {"python", "torch", "compss_train", "java", "COMPSs"}
    missing = {name for name, finding in findings.items() if finding.state == "missing"}
    assert missing == {f"{name} on n1" for name in expected}
    assert findings["torch on n1"].found == f"1.0, but {metadata.version('torch')} here"


def test_builds_of_one_version_and_patch_releases_go_together(machine):
    machine.add_compss()
    torch = metadata.version("torch").split("+")[0]
    python = ".".join([*platform.python_version().split(".")[:2], "99"])
    there = machine.add_python(torch=f"{torch}+cu999", python=python)
    findings = findings_by_name(Request(nodes=("n1",), python=str(there)))
    assert states(findings, "torch on n1", "python on n1") == ["ok", "ok"]


def test_nodes_with_fewer_cores_than_declared_and_without_python(machine):
    machine.add_compss()
    project, resources = machine.write_files(WorkerNode("n1", 48, gpus=4))
    findings = findings_by_name(Request(project, resources, python=str(machine.add_python(cpus=16, gpus=4))))
    assert states(findings, "units of n1", "GPUs of n1") == ["missing", "ok"]
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
        env={
            "PYTHONPATH": str(tmp_path),
            "PATH": str(machine.bin),
        },
    )
    seen = json.loads(done.stdout)
    assert seen["python"] == platform.python_version()
    assert (seen["torch"], seen["compss"], seen["java"], seen["gpus"]) == (None, True, True, 0)
    assert seen["problems"]["torch"] == "OSError: libcudart is not there"
    assert f"sys.path.append({str(Path(__file__).parents[3])!r})" in probe


def test_invalid_files(machine):
    machine.add_compss()
    project, resources = machine.write_files(WorkerNode("localhost", 1))
    broken, other = machine.folder / "broken.xml", machine.folder / "other.xml"
    broken.write_text("<ResourcesList>")
    other.write_text(resources_xml([WorkerNode("elsewhere", 1)]))
    findings = findings_by_name(Request(machine.folder / "none.xml", broken))
    assert states(findings, "project file", "resources file") == ["missing", "missing"]
    findings = findings_by_name(Request(project, other, python=str(machine.add_python())))
    assert findings["nodes"].found == "localhost of the project file not in the resources file"
    assert "nodes" not in findings_by_name(Request(project, resources, python=str(machine.add_python())))


@pytest.mark.parametrize(
    ("node", "state"),
    [
        (WorkerNode("localhost", 2), "ok"),
        (WorkerNode("127.0.0.1", 3), "warning"),
        (WorkerNode("localhost", 5), "missing"),
        (WorkerNode("localhost", 2, gpus=1), "missing"),
    ],
)
def test_declared_units_and_gpus(machine, node, state):
    machine.add_compss()
    project, resources = machine.write_files(node)
    findings = findings_by_name(Request(project, resources, ("localhost",), str(machine.add_python())))
    name = f"{'GPUs' if node.gpus else 'units'} of {node.name}"
    assert states(findings, name) == [state]
    assert ("configure" in findings[name].advice) == (state != "ok")
    assert ("--cpu_affinity=disabled" in findings[name].advice) == (node.cpus > 4)
    assert states(findings, "project file", "resources file") == ["ok", "ok"]


def test_gpus_and_workers_beyond_those_of_the_machine(machine):
    machine.add_compss()
    machine.add_printing_program("nvidia-smi", "GPU 0: A (UUID: x)", "GPU 1: A (UUID: y)")
    for gpus, state in ((2, "ok"), (1, "warning"), (3, "missing")):
        _, resources = machine.write_files(WorkerNode("localhost", 2, gpus))
        assert states(findings_by_name(Request(resources=resources)), "GPUs of localhost") == [state]
    _, resources = machine.write_files(*loopback_nodes(2, units=2))
    findings = findings_by_name(Request(resources=resources))
    assert findings["units of this machine"].found == "4 in all, 2 physical cores"
    assert "missing" not in states(findings, *findings)


def test_default_resources_of_compss(machine):
    machine.add_compss()
    default = machine.home / "Runtime/configuration/xml/resources/default_resources.xml"
    default.parent.mkdir(parents=True)
    default.write_text(resources_xml(loopback_nodes(1, units=8)))
    findings = findings_by_name()
    assert states(findings, "units of localhost") == ["warning"]
    assert "COMPSs's own" in findings["units of localhost"].found
