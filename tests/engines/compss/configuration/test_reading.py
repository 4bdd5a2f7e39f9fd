from pathlib import Path

import pytest

from compss_train.engines.compss.configuration import (
    UNREADABLE,
    DeclaredNode,
    Node,
    read_nodes,
    read_project,
    read_resources,
    write,
)

PROJECT = """<p:Project xmlns:p="urn:project">
  <p:MasterNode/>
  <p:ComputeNode Name="a"><p:InstallDir>/opt/COMPSs/</p:InstallDir></p:ComputeNode>
  <p:ComputeNode Name="b"/>
</p:Project>"""
RESOURCES = """<ResourcesList>
  <ComputeNode Name="a">
    <Processor Name="First"><ComputingUnits> 4 </ComputingUnits></Processor>
    <Processor Name="Second"><ComputingUnits>2</ComputingUnits><Type>cpu</Type></Processor>
    <Processor Name="Board"><ComputingUnits>3</ComputingUnits><Type> GPU </Type></Processor>
    <Processor Name="Other"><ComputingUnits>7</ComputingUnits><Type>FPGA</Type></Processor>
  </ComputeNode>
  <ComputeNode Name="c"><Processor Name="First"><ComputingUnits>some</ComputingUnits></Processor></ComputeNode>
</ResourcesList>"""


@pytest.fixture
def files(tmp_path):
    project, resources = tmp_path / "project.xml", tmp_path / "resources.xml"
    project.write_text(PROJECT)
    resources.write_text(RESOURCES)
    return project, resources


def test_what_is_written_is_read(tmp_path):
    project, resources = write(tmp_path, [Node("a", 4), Node("b", 2, 3)], install_dir=Path("/c"))
    assert read_project(project) == {"a": Path("/c"), "b": Path("/c")}
    assert read_nodes(project, resources) == [DeclaredNode("a", 4, 0), DeclaredNode("b", 2, 3)]


def test_files_of_other_hands(files):
    project, resources = files
    assert read_project(project) == {"a": Path("/opt/COMPSs"), "b": None}
    assert read_resources(resources) == {"a": DeclaredNode("a", 6, 3), "c": DeclaredNode("c", 0, 0)}
    assert read_nodes(project, resources) == [DeclaredNode("a", 6, 3)]


@pytest.mark.parametrize("text", [None, "", "<Project>"])
def test_files_that_cannot_be_read(text, tmp_path):
    path = tmp_path / "file.xml"
    if text is not None:
        path.write_text(text)
    for read in (read_project, read_resources):
        with pytest.raises(UNREADABLE):
            read(path)
