import pytest

from compss_train.cli import doctor
from compss_train.cli.doctor import Request
from compss_train.engines.compss.configuration import Node, loopback_nodes, resources_xml
from tests.cli.doctor.machine import found, states


@pytest.mark.parametrize(
    ("node", "state"),
    [
        (Node("localhost", 2), "ok"),
        (Node("127.0.0.1", 3), "warning"),
        (Node("localhost", 5), "missing"),
        (Node("localhost", 2, gpus=1), "missing"),
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
        _, resources = machine.files(Node("localhost", 2, gpus))
        assert states(found(Request(resources=resources)), "GPUs of localhost") == [state]


def test_more_workers_than_cores(machine):
    machine.compss()
    _, resources = machine.files(*loopback_nodes(2, units=2))
    findings = found(Request(resources=resources))
    assert findings["units of this machine"].found == "4 in all, 2 physical cores"
    assert doctor.ready(findings.values())


def test_default_resources_of_compss(machine):
    machine.compss()
    default = machine.home / "Runtime/configuration/xml/resources/default_resources.xml"
    default.parent.mkdir(parents=True)
    default.write_text(resources_xml(loopback_nodes(1, units=8)))
    findings = found()
    assert states(findings, "units of localhost") == ["warning"]
    assert "COMPSs's own" in findings["units of localhost"].found
