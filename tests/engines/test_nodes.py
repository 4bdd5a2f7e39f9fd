"""Tests of nodes: shares of their units, and the address at which tasks reach this machine."""

import socket

import pytest

from compss_train import SerialEngine
from compss_train.engines.nodes import Node, address_for


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
