import socket

import pytest

from compss_train.engines.compss.configuration import DeclaredNode
from compss_train.engines.compss.context import address_for, outward_address


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
    nodes = [DeclaredNode(name, 1, 0) for name in names]
    assert address_for(nodes) == ("127.0.0.1" if here else outward_address())


def test_the_outward_address_is_this_machines():
    """Whoever connects to it reaches a server of this process."""
    with (
        socket.create_server((outward_address(), 0)) as server,
        socket.create_connection(server.getsockname(), timeout=10) as client,
    ):
        accepted, _ = server.accept()
        with accepted:
            accepted.sendall(b"here")
        assert client.recv(4) == b"here"
