"""Tests of worker nodes: resources, ports, and the folder of COMPSs."""

import socket
from itertools import pairwise
from pathlib import Path

import pytest

from compss_train.engines.compss import configuration
from compss_train.engines.compss.configuration import (
    DEFAULT_HOME,
    LAST_PORT,
    LOWEST_PORT,
    PORTS,
    WorkerNode,
    compss_home,
    free_first_port,
    host_nodes,
    loopback_nodes,
    presumed_home,
)
from compss_train.engines.nodes import physical_cores


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
    assert host_nodes(["a", "b"], units=4, gpus=2) == (WorkerNode("a", 4, 2), WorkerNode("b", 4, 2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: loopback_nodes(0), "nodes=0: give 1 to 254"),
        (lambda: loopback_nodes(2, gpus=1), "gpus=1 with nodes=2.*use one node"),
        (lambda: loopback_nodes(1, units=0), "units=0 for localhost: give at least 1"),
        (lambda: loopback_nodes(1, gpus=-1), "gpus=-1 for localhost"),
        (lambda: loopback_nodes(9, first_port=65500), "127.0.0.4 would listen on port 65530"),
        (lambda: host_nodes(["a", "a"]), "each host once"),
        (lambda: WorkerNode(" ", 1), "needs the name of a host"),
    ],
)
def test_bad_nodes(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_free_ports():
    first = free_first_port(3)
    assert LOWEST_PORT <= first <= LAST_PORT - 3 * PORTS + 1
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert not configuration._is_free(listener.getsockname()[1])


def test_no_free_ports(monkeypatch):
    monkeypatch.setattr(configuration, "_is_free", lambda port: False)
    with pytest.raises(OSError, match="no 10 consecutive free ports"):
        free_first_port(1)


def test_ports_of_outgoing_connections_are_left_out(monkeypatch, tmp_path):
    range_file = tmp_path / "range"
    monkeypatch.setattr(configuration, "OUTGOING", range_file)
    monkeypatch.setattr(configuration, "_is_free", lambda port: True)
    range_file.write_text(f"{LOWEST_PORT + 20}\t{LAST_PORT - 10}\n")
    for _ in range(50):
        first = free_first_port(1)
        assert LOWEST_PORT <= first <= LOWEST_PORT + 20 - PORTS
    range_file.unlink()
    assert free_first_port(1) + PORTS <= 32768


def test_compss_home_is_where_runcompss_lies(tmp_path, monkeypatch):
    scripts = tmp_path / "Runtime/scripts/user"
    scripts.mkdir(parents=True)
    (scripts / "runcompss").write_text("#!/bin/sh\n")
    (scripts / "runcompss").chmod(0o755)
    monkeypatch.delenv("COMPSS_HOME", raising=False)
    monkeypatch.setenv("PATH", str(scripts))
    assert compss_home() == tmp_path
    monkeypatch.setenv("PATH", "/nowhere")
    assert (compss_home(), presumed_home()) == (None, DEFAULT_HOME)
    monkeypatch.setenv("COMPSS_HOME", "/elsewhere")
    assert compss_home() == Path("/elsewhere")
