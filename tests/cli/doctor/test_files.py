from compss_train.cli.doctor import Request
from compss_train.engines.compss.configuration import Node, resources_xml
from tests.cli.doctor.machine import found, states


def test_files_that_are_wrong(machine):
    machine.compss()
    project, resources = machine.files(Node("localhost", 1))
    broken, other = machine.folder / "broken.xml", machine.folder / "other.xml"
    broken.write_text("<ResourcesList>")
    other.write_text(resources_xml([Node("elsewhere", 1)]))
    assert states(found(Request(machine.folder / "none.xml", broken)), "project file", "resources file") == [
        "missing",
        "missing",
    ]
    findings = found(Request(project, other, python=str(machine.python())))
    assert findings["nodes"].found == "localhost of the project file not in the resources file"
    assert "nodes" not in found(Request(project, resources, python=str(machine.python())))
