"""Tests of the two configuration files: what is written, and what is read."""

import os
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from compss_train.engines.compss.configuration import (
    DEFAULT_HOME,
    FIRST_PORT,
    UNREADABLE,
    WorkerNode,
    loopback_nodes,
    project_xml,
    read_nodes,
    read_project,
    read_resources,
    resources_xml,
    write,
)
from compss_train.engines.nodes import Node

HOME = Path(os.environ.get("COMPSS_HOME", DEFAULT_HOME))


def entries(xml):
    return ElementTree.fromstring(xml).findall("ComputeNode")


def test_project_file():
    first, second = entries(project_xml(loopback_nodes(2, 1), install_dir=Path("/c"), working_dir=Path("/w")))
    assert [entry.get("Name") for entry in (first, second)] == ["127.0.0.1", "127.0.0.2"]
    assert (first.findtext("InstallDir"), first.findtext("WorkingDir")) == ("/c/", "/w/127.0.0.1/")
    assert second.findtext("WorkingDir") == "/w/127.0.0.2/"


def test_resources_file():
    (entry,) = entries(resources_xml(loopback_nodes(1, units=6, gpus=2)))
    processors = {
        item.get("Name"): (item.findtext("ComputingUnits"), item.findtext("Type"))
        for item in entry.findall("Processor")
    }
    assert processors == {"MainProcessor": ("6", "CPU"), "GPUs": ("2", "GPU")}
    adaptor = entry.find("Adaptors/Adaptor")
    assert adaptor.get("Name").endswith("NIOAdaptor")
    assert adaptor.find("SubmissionSystem/Interactive") is not None
    assert int(adaptor.findtext("Ports/MinPort")) == FIRST_PORT
    (entry,) = entries(resources_xml(loopback_nodes(1, units=6)))
    assert len(entry.findall("Processor")) == 1


@pytest.mark.skipif(
    not (HOME / "Runtime").is_dir() or not shutil.which("xmllint"), reason="needs COMPSs's schemas and xmllint"
)
def test_files_agree_with_the_schemas(tmp_path):
    schemas = HOME / "Runtime/configuration/xml"
    for nodes in (loopback_nodes(3), loopback_nodes(1, gpus=2)):
        for file, schema in zip(write(tmp_path, nodes), ("projects/project", "resources/resources"), strict=True):
            command = ["xmllint", "--noout", "--schema", schemas / f"{schema}_schema.xsd", file]
            subprocess.run(command, check=True, capture_output=True)


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
    project, resources = write(tmp_path, [WorkerNode("a", 4), WorkerNode("b", 2, 3)], install_dir=Path("/c"))
    assert read_project(project) == {"a": Path("/c"), "b": Path("/c")}
    assert read_nodes(project, resources) == [Node("a", 4, 0), Node("b", 2, 3)]


def test_files_written_by_others(files):
    project, resources = files
    assert read_project(project) == {"a": Path("/opt/COMPSs"), "b": None}
    assert read_resources(resources) == {"a": Node("a", 6, 3), "c": Node("c", 0, 0)}
    assert read_nodes(project, resources) == [Node("a", 6, 3)]


@pytest.mark.parametrize("text", [None, "", "<Project>"])
def test_files_that_cannot_be_read(text, tmp_path):
    path = tmp_path / "file.xml"
    if text is not None:
        path.write_text(text)
    for read in (read_project, read_resources):
        with pytest.raises(UNREADABLE):
            read(path)
