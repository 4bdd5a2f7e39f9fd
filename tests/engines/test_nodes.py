"""Nodes: shares of their units and GPUs, and the address at which tasks reach this machine."""

import socket

import pytest
import torch

from compss_train import LocalEngine, SerialEngine
from compss_train.engines.nodes import Node, address_for, cores


class Declared(SerialEngine):
    """An engine on nodes that a test declares."""

    declared: tuple[Node, ...] = ()

    @classmethod
    def nodes(cls):
        return cls.declared


def test_workers_share_the_units_of_their_nodes(monkeypatch):
    monkeypatch.setattr(Declared, "declared", (Node("a", 48), Node("b", 48)))
    assert [Declared.thread_share(workers) for workers in (1, 2, 8, 96, 200)] == [48, 48, 12, 1, 1]
    monkeypatch.setattr(Declared, "declared", (Node("a", 48), Node("b", 4)))
    assert Declared.thread_share(2) == 4
    monkeypatch.setattr(Declared, "declared", ())
    assert Declared.thread_share(2) == 1


@pytest.mark.parametrize(
    ("names", "here"),
    [
        (["localhost"], True),
        (["127.0.0.1", "127.0.0.2"], True),
        (["localhost", "node1"], False),
        ([], False),
    ],
)
def test_the_loopback_address_serves_nodes_that_are_all_here(names, here):
    address = address_for([Node(name, 1) for name in names])
    assert address == ("127.0.0.1" if here else address_for([Node("elsewhere", 1)]))


def test_the_outward_address_is_this_machines():
    with (
        socket.create_server((address_for([]), 0)) as server,
        socket.create_connection(server.getsockname(), timeout=10) as client,
    ):
        accepted, _ = server.accept()
        with accepted:
            accepted.sendall(b"here")
        assert client.recv(4) == b"here"


@pytest.mark.parametrize("machine", [SerialEngine, LocalEngine])
def test_gpus_are_checked_against_what_torch_sees(machine, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    for enough in (0, 1, 2):
        machine.check_gpus(enough)
    with pytest.raises(
        ValueError, match=(f"num_gpu=3, but the {machine.name} engine has 2 GPUs; use num_gpu=2")
    ):
        machine.check_gpus(3)


def test_threads_are_shared_and_at_least_one(monkeypatch):
    monkeypatch.setattr("compss_train.engines.nodes.cpu_count", lambda: 8)
    assert [SerialEngine.thread_share(workers) for workers in (1, 2, 3, 8, 100)] == [8, 4, 2, 1, 1]
    assert cores() == 8
