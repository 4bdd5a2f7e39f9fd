from itertools import pairwise

import pytest

from compss_train.engines.compss.configuration import Node, host_nodes, loopback_nodes, physical_cores
from compss_train.engines.compss.configuration import nodes as workers


def test_one_node_has_the_physical_cores():
    (node,) = loopback_nodes(1)
    assert (node.name, node.units, node.gpus) == ("localhost", physical_cores(), 0)


def test_loopback_nodes_share_the_cores_and_have_ports_of_their_own(monkeypatch):
    monkeypatch.setattr(workers, "physical_cores", lambda: 8)
    nodes = loopback_nodes(3)
    assert [node.name for node in nodes] == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    assert [node.units for node in nodes] == [2, 2, 2]
    assert all(before.last_port < after.first_port for before, after in pairwise(nodes))
    assert [node.units for node in loopback_nodes(9)] == [1] * 9


def test_hosts():
    assert host_nodes(["a", "b"], units=4, gpus=2) == (Node("a", 4, 2), Node("b", 4, 2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: loopback_nodes(0), "nodes=0: give 1 to 254"),
        (lambda: loopback_nodes(2, gpus=1), "gpus=1 with nodes=2.*use one node"),
        (lambda: loopback_nodes(1, units=0), "units=0 for localhost: give at least 1"),
        (lambda: loopback_nodes(1, gpus=-1), "gpus=-1 for localhost"),
        (lambda: loopback_nodes(9, first_port=65500), "127.0.0.4 would listen on port 65530"),
        (lambda: host_nodes(["a", "a"]), "each of them once"),
        (lambda: Node(" ", 1), "needs the name of a host"),
    ],
)
def test_bad_nodes(make, message):
    with pytest.raises(ValueError, match=message):
        make()
