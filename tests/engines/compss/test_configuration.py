"""Worker nodes of COMPSs, its folder, and its two configuration files: what is written, and what is read."""

import os
import shutil
import socket
import subprocess
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from compss_train.engines.compss import configuration
from compss_train.engines.compss.configuration import WorkerNode, loopback_nodes, project_xml, write
from compss_train.engines.nodes import Node, physical_cores

HOME = Path(os.environ.get("COMPSS_HOME", configuration.DEFAULT_HOME))


def entries(xml):
    return ElementTree.fromstring(xml).findall("ComputeNode")


def test_project_file():
    first, second = entries(project_xml(loopback_nodes(2, 1), install_dir=Path("/c"), working_dir=Path("/w")))
    assert [entry.get("Name") for entry in (first, second)] == ["127.0.0.1", "127.0.0.2"]
    assert (first.findtext("InstallDir"), first.findtext("WorkingDir")) == ("/c/", "/w/127.0.0.1/")
    assert second.findtext("WorkingDir") == "/w/127.0.0.2/"


def test_resources_file():
    (entry,) = entries(configuration.resources_xml(loopback_nodes(1, units=6, gpus=2)))
    processors = {
        item.get("Name"): (item.findtext("ComputingUnits"), item.findtext("Type"))
        for item in entry.findall("Processor")
    }
    assert processors == {"MainProcessor": ("6", "CPU"), "GPUs": ("2", "GPU")}
    adaptor = entry.find("Adaptors/Adaptor")
    assert adaptor.get("Name").endswith("NIOAdaptor")
    assert adaptor.find("SubmissionSystem/Interactive") is not None
    assert int(adaptor.findtext("Ports/MinPort")) == configuration.FIRST_PORT
    (entry,) = entries(configuration.resources_xml(loopback_nodes(1, units=6)))
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
    assert configuration.read_project(project) == {"a": Path("/c"), "b": Path("/c")}
    assert configuration.read_nodes(project, resources) == [Node("a", 4, 0), Node("b", 2, 3)]


def test_files_written_by_others(files):
    project, resources = files
    assert configuration.read_project(project) == {"a": Path("/opt/COMPSs"), "b": None}
    assert configuration.read_resources(resources) == {"a": Node("a", 6, 3), "c": Node("c", 0, 0)}
    assert configuration.read_nodes(project, resources) == [Node("a", 6, 3)]


@pytest.mark.parametrize("text", [None, "", "<Project>"])
def test_files_that_cannot_be_read(text, tmp_path):
    path = tmp_path / "file.xml"
    if text is not None:
        path.write_text(text)
    for read in (configuration.read_project, configuration.read_resources):
        with pytest.raises(configuration.UNREADABLE):
            read(path)


def test_one_node_has_the_physical_cores():
    (node,) = loopback_nodes(1)
    assert (node.name, node.cpus, node.gpus) == ("localhost", physical_cores(), 0)


def test_loopback_nodes_share_cores_and_have_their_own_ports(monkeypatch):
    monkeypatch.setattr(configuration, "physical_cores", lambda: 8)
    three = loopback_nodes(3)
    assert [node.name for node in three] == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    assert [node.cpus for node in three] == [2, 2, 2]
    assert all(before.last_port < after.first_port for before, after in pairwise(three))
    assert [node.cpus for node in loopback_nodes(9)] == [1] * 9


def test_hosts():
    assert configuration.host_nodes(["a", "b"], units=4, gpus=2) == (WorkerNode("a", 4, 2), WorkerNode("b", 4, 2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: loopback_nodes(0), "nodes=0: give 1 to 254"),
        (lambda: loopback_nodes(2, gpus=1), "gpus=1 with nodes=2.*use one node"),
        (lambda: loopback_nodes(1, units=0), "units=0 for localhost: give at least 1"),
        (lambda: loopback_nodes(1, gpus=-1), "gpus=-1 for localhost"),
        (lambda: loopback_nodes(9, first_port=65500), "127.0.0.4 would listen on port 65530"),
        (lambda: configuration.host_nodes(["a", "a"]), "each host once"),
        (lambda: WorkerNode(" ", 1), "needs the name of a host"),
    ],
)
def test_bad_nodes(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_free_ports():
    first = configuration.free_first_port(3)
    assert configuration.LOWEST_PORT <= first <= configuration.LAST_PORT - 3 * configuration.PORTS + 1
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert not configuration._is_free(listener.getsockname()[1])


def test_no_free_ports(monkeypatch):
    monkeypatch.setattr(configuration, "_is_free", lambda port: False)
    with pytest.raises(OSError, match="no 10 consecutive free ports"):
        configuration.free_first_port(1)


def test_ports_of_outgoing_connections_are_left_out(monkeypatch):
    monkeypatch.setattr(configuration, "_is_free", lambda port: True)
    monkeypatch.setattr(configuration, "LOWEST_OUTGOING_PORT", configuration.LOWEST_PORT + 20)
    for _ in range(50):
        first = configuration.free_first_port(1)
        assert configuration.LOWEST_PORT <= first <= configuration.LOWEST_PORT + 20 - configuration.PORTS


def test_compss_home_is_where_runcompss_lies(tmp_path, monkeypatch):
    scripts = tmp_path / "Runtime/scripts/user"
    scripts.mkdir(parents=True)
    (scripts / "runcompss").write_text("#!/bin/sh\n")
    (scripts / "runcompss").chmod(0o755)
    monkeypatch.delenv("COMPSS_HOME", raising=False)
    monkeypatch.setenv("PATH", str(scripts))
    assert configuration.compss_home() == tmp_path
    monkeypatch.setenv("PATH", "/nowhere")
    assert (configuration.compss_home(), configuration.presumed_home()) == (None, configuration.DEFAULT_HOME)
    monkeypatch.setenv("COMPSS_HOME", "/elsewhere")
    assert configuration.compss_home() == Path("/elsewhere")
