import pytest

from compss_train.cli import doctor
from compss_train.cli.doctor import Request
from compss_train.engines.compss.configuration import resources_xml
from compss_train.engines.compss.worker_nodes import WorkerNode, loopback_nodes
from tests.cli.doctor.fake_machine import findings_by_name, states


def test_invalid_files(machine):
    machine.add_compss()
    project, resources = machine.write_files(WorkerNode("localhost", 1))
    broken, other = machine.folder / "broken.xml", machine.folder / "other.xml"
    broken.write_text("<ResourcesList>")
    other.write_text(resources_xml([WorkerNode("elsewhere", 1)]))
    assert states(
        findings_by_name(Request(machine.folder / "none.xml", broken)), "project file", "resources file"
    ) == [
        "missing",
        "missing",
    ]
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


def test_gpus_of_the_machine(machine):
    machine.add_compss()
    machine.add_printing_program("nvidia-smi", "GPU 0: A (UUID: x)", "GPU 1: A (UUID: y)")
    for gpus, state in ((2, "ok"), (1, "note"), (3, "missing")):
        _, resources = machine.write_files(WorkerNode("localhost", 2, gpus))
        assert states(findings_by_name(Request(resources=resources)), "GPUs of localhost") == [state]


def test_more_workers_than_cores(machine):
    machine.add_compss()
    _, resources = machine.write_files(*loopback_nodes(2, units=2))
    findings = findings_by_name(Request(resources=resources))
    assert findings["units of this machine"].found == "4 in all, 2 physical cores"
    assert doctor.ready(findings.values())


def test_default_resources_of_compss(machine):
    machine.add_compss()
    default = machine.home / "Runtime/configuration/xml/resources/default_resources.xml"
    default.parent.mkdir(parents=True)
    default.write_text(resources_xml(loopback_nodes(1, units=8)))
    findings = findings_by_name()
    assert states(findings, "units of localhost") == ["warning"]
    assert "COMPSs's own" in findings["units of localhost"].found
