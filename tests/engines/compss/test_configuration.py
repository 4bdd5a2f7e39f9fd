"""Worker nodes of COMPSs, its folder, and its two configuration files: what is written, and what is
read.
"""

import inspect
import os
import re
import shutil
import socket
import subprocess
import threading
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

import compss_train
from compss_train.engines import calls
from compss_train.engines.calls import Failure, Placeholder
from compss_train.engines.codec import SerializedValue
from compss_train.engines.compss import configuration, task_body
from compss_train.engines.compss.configuration import (
    Installation,
    WorkerNode,
    loopback_nodes,
    project_xml,
    write,
)
from compss_train.engines.compss.task_body import bound_resources, run_task
from compss_train.engines.mapping import map_chunk
from compss_train.engines.nodes import Node, physical_cores
from compss_train.model.program_settings import ProgramSettings
from tests.engines import tasks

HOME = Path(os.environ.get("COMPSS_HOME", configuration.DEFAULT_HOME))


def entries(xml):
    return ElementTree.fromstring(xml).findall("ComputeNode")


def test_project_file():
    first, second = entries(
        project_xml(
            loopback_nodes(2, 1),
            environment=Path("/f/environment.sh"),
            install_dir=Path("/c"),
            working_dir=Path("/w"),
        )
    )
    assert [entry.get("Name") for entry in (first, second)] == ["127.0.0.1", "127.0.0.2"]
    assert (first.findtext("InstallDir"), first.findtext("WorkingDir")) == ("/c/", "/w/127.0.0.1/")
    assert second.findtext("WorkingDir") == "/w/127.0.0.2/"
    assert second.findtext("Application/EnvironmentScript") == "/f/environment.sh"


def test_nodes_find_the_interpreter_first(tmp_path):
    folder = tmp_path / "an environment" / "bin"
    folder.mkdir(parents=True)
    (folder / "python3").symlink_to("/bin/echo")
    write(tmp_path, loopback_nodes(1), python=str(folder / "python"))
    script = f"source {tmp_path}/{configuration.ENVIRONMENT_SCRIPT}; python3 it is"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "it is\n"


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
    not (HOME / "Runtime").is_dir() or not shutil.which("xmllint"),
    reason=("needs COMPSs's schemas and xmllint"),
)
def test_files_agree_with_the_schemas(tmp_path):
    schemas = HOME / "Runtime/configuration/xml"
    for nodes in (loopback_nodes(3), loopback_nodes(1, gpus=2)):
        for file, schema in zip(
            write(tmp_path, nodes, python="/p/python"),
            ("projects/project", "resources/resources"),
            strict=True,
        ):
            command = ["xmllint", "--noout", "--schema", schemas / f"{schema}_schema.xsd", file]
            subprocess.run(command, check=True, capture_output=True)


PROJECT = """<p:Project xmlns:p="urn:project">
  <p:MasterNode/>
  <p:ComputeNode Name="a">
    <p:InstallDir>/opt/COMPSs/</p:InstallDir>
    <p:Application><p:EnvironmentScript>/opt/modules.sh</p:EnvironmentScript></p:Application>
  </p:ComputeNode>
  <p:ComputeNode Name="b"/>
</p:Project>"""
RESOURCES = """<ResourcesList>
  <ComputeNode Name="a">
    <Processor Name="First"><ComputingUnits> 4 </ComputingUnits></Processor>
    <Processor Name="Second"><ComputingUnits>2</ComputingUnits><Type>cpu</Type></Processor>
    <Processor Name="Board"><ComputingUnits>3</ComputingUnits><Type> GPU </Type></Processor>
    <Processor Name="Other"><ComputingUnits>7</ComputingUnits><Type>FPGA</Type></Processor>
  </ComputeNode>
  <ComputeNode Name="c">
    <Processor Name="First"><ComputingUnits>some</ComputingUnits></Processor>
  </ComputeNode>
</ResourcesList>"""


@pytest.fixture
def files(tmp_path):
    project = tmp_path / "project.xml"
    resources = tmp_path / "resources.xml"
    project.write_text(PROJECT)
    resources.write_text(RESOURCES)
    return project, resources


def test_what_is_written_is_read(tmp_path):
    project, resources = write(
        tmp_path,
        [WorkerNode("a", 4), WorkerNode("b", 2, 3)],
        python="/p/python",
        install_dir=Path("/c"),
    )
    installation = Installation(Path("/c"), tmp_path / configuration.ENVIRONMENT_SCRIPT)
    assert configuration.read_project(project) == {"a": installation, "b": installation}
    assert configuration.read_nodes(project, resources) == [Node("a", 4, 0), Node("b", 2, 3)]


def test_files_written_by_others(files):
    project, resources = files
    assert configuration.read_project(project) == {
        "a": Installation(Path("/opt/COMPSs"), Path("/opt/modules.sh")),
        "b": Installation(),
    }
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
    assert configuration.host_nodes(["a", "b"], units=4, gpus=2) == (
        WorkerNode("a", 4, 2),
        WorkerNode("b", 4, 2),
    )


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: loopback_nodes(0), "nodes=0"),
        (lambda: loopback_nodes(2, gpus=1), "gpus=1 with nodes=2"),
        (lambda: loopback_nodes(1, units=0), "units=0 for localhost"),
        (lambda: loopback_nodes(1, gpus=-1), "gpus=-1 for localhost"),
        (lambda: loopback_nodes(9, first_port=65500), "127.0.0.4 would listen on port 65530"),
        (lambda: configuration.host_nodes(["a", "a"]), "each host once"),
        (lambda: WorkerNode(" ", 1), "needs the name of a host"),
    ],
)
def test_bad_nodes(make, name, raises):
    with raises(ValueError, name):
        make()


def test_free_ports():
    first = configuration.free_first_port(3)
    assert (
        configuration.LOWEST_PORT <= first <= configuration.LAST_PORT - 3 * configuration.PORTS + 1
    )
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert not configuration.is_free(listener.getsockname()[1])


def test_compss_home_is_where_runcompss_lies(tmp_path, monkeypatch):
    scripts = tmp_path / "Runtime/scripts/user"
    scripts.mkdir(parents=True)
    (scripts / "runcompss").write_text("#!/bin/sh\n")
    (scripts / "runcompss").chmod(0o755)
    monkeypatch.delenv("COMPSS_HOME", raising=False)
    monkeypatch.setenv("PATH", str(scripts))
    assert configuration.compss_home() == tmp_path
    monkeypatch.setenv("PATH", "/nowhere")
    assert (configuration.compss_home(), configuration.presumed_home()) == (
        None,
        configuration.DEFAULT_HOME,
    )
    monkeypatch.setenv("COMPSS_HOME", "/elsewhere")
    assert configuration.compss_home() == Path("/elsewhere")


def call(function, *args):
    return SerializedValue.of(task_body.Call(function, args, False, ProgramSettings()))


NO_SOURCES = SerializedValue.of(b"")


def test_an_exception_is_each_result():
    results = run_task(3, 1, call(tasks.fail, "broken"), NO_SOURCES, [])
    assert len(results) == 3
    for result in results:
        error = result.load().exception()
        assert isinstance(error, KeyError)
        assert "in fail" in str(error.__cause__)


def test_arguments_and_results_that_cannot_be_serialized_are_failures():
    unloadable = run_task(1, 1, call(tasks.add, tasks.Unloadable()), NO_SOURCES, [])
    assert isinstance(unloadable.load().exception(), ImportError)
    unpackable = run_task(2, 1, call(tasks.good_and_bad), NO_SOURCES, [])
    assert all(isinstance(result.load(), Failure) for result in unpackable)


def test_a_task_that_compss_lost_is_an_error():
    lost = run_task(1, 1, call(tasks.add, Placeholder(0)), NO_SOURCES, [None])
    assert isinstance(lost.load().exception(), task_body.LostInputError)


def test_tasks_are_named_by_functions_of_the_package():
    package = Path(inspect.getfile(compss_train)).parent
    sources = "\n".join(path.read_text() for path in package.rglob("*.py"))
    defined = set(re.findall(r"^def (\w+)\(", sources, re.MULTILINE))
    assert {*calls.FIRST, *calls.ON_GPUS, *calls.OTHERS} - {"run"} <= defined
    assert calls.task_name(map_chunk) == "map_chunk"
    assert calls.task_name(tasks.total) == "run"


def test_all_threads_move_to_the_cores_that_were_bound(monkeypatch):
    before = os.sched_getaffinity(0)
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    core = min(before)
    monkeypatch.setenv("COMPSS_BINDED_CPUS", str(core))
    try:
        with bound_resources(2, gpu=False):
            assert os.sched_getaffinity(thread.native_id) == {core}
    finally:
        stop.set()
        thread.join()
        monkeypatch.setenv("COMPSS_BINDED_CPUS", ",".join(map(str, before)))
        with bound_resources(2, gpu=False):
            pass
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(("visible", "taken"), [(4, [3, 1]), (3, [2, 1]), (1, [0, 0])])
def test_processes_see_all_gpus_and_take_the_bound_one(monkeypatch, visible, taken):
    """Where CUDA was initialized before with fewer devices, the last one."""
    seen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: bool(seen))
    monkeypatch.setattr(
        torch.cuda, "init", lambda: seen.append(os.environ.get("CUDA_VISIBLE_DEVICES"))
    )
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(torch.cuda, "set_device", seen.append)
    for gpu in ("3", "1,2"):  # two tasks of one process
        monkeypatch.setenv("COMPSS_BINDED_GPUS", gpu)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpu)
        with bound_resources(1, gpu=True):
            assert os.environ["CUDA_VISIBLE_DEVICES"] == gpu  # which COMPSs deletes after the task
    assert seen == [None, *taken]


def test_a_node_whose_torch_sees_no_gpu_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("COMPSS_BINDED_GPUS", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    with (
        pytest.raises(
            RuntimeError, match=r"bound GPU 2 of .* but torch sees no GPU there.*num_gpu=0"
        ),
        bound_resources(1, gpu=True),
    ):
        pass
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2"  # PyCOMPSs deletes it after the task


def test_without_the_runtime_the_users_choice_of_gpus_stands(monkeypatch):
    monkeypatch.delenv("COMPSS_BINDED_GPUS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with bound_resources(1, gpu=True):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
