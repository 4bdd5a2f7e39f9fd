import socket

import pytest

from compss_train.engines import Resources
from compss_train.engines.compss.configuration.files import DeclaredNode
from compss_train.engines.compss.resources import (
    JVM_OPTIONS,
    address_for,
    check_fit,
    check_limits,
    declared_nodes,
    fit_together,
    lost_task_error,
    outward_address,
    thread_share,
)
from tests.engines.compss.applications import declare_nodes


def test_nodes_are_those_of_the_configuration(monkeypatch, tmp_path):
    declare_nodes(monkeypatch, tmp_path, ("first", 4), ("second", 2, 3))
    assert declared_nodes() == [DeclaredNode("first", 4, 0), DeclaredNode("second", 2, 3)]


def test_without_a_configuration_no_nodes_are_known(monkeypatch, tmp_path):
    monkeypatch.delenv(JVM_OPTIONS, raising=False)
    assert declared_nodes() == []
    monkeypatch.setenv(JVM_OPTIONS, str(tmp_path / "nothing"))
    assert declared_nodes() == []
    declare_nodes(monkeypatch, tmp_path, ("first", 4))
    (tmp_path / "resources.xml").write_text("<ResourcesList>")
    assert declared_nodes() == []


def test_workers_share_the_units_of_their_nodes(monkeypatch):
    monkeypatch.delenv("ComputingUnits", raising=False)
    nodes = [DeclaredNode("a", 48, 0), DeclaredNode("b", 48, 0)]
    assert [thread_share(workers, nodes) for workers in (1, 2, 8, 96, 200)] == [48, 48, 12, 1, 1]
    assert thread_share(2, [DeclaredNode("a", 48, 0), DeclaredNode("b", 4, 0)]) == 4
    assert thread_share(2, []) == 1
    monkeypatch.setenv("ComputingUnits", "6")
    assert thread_share(2, nodes) == 6


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


def nodes(*sizes):
    return [DeclaredNode(f"n{place}", *size) for place, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("tasks", "sizes", "fits"),
    [
        ([], [(1, 0)], True),
        ([(1, 0)] * 4, [(4, 0)], True),
        ([(1, 0)] * 5, [(4, 0)], False),
        ([(3, 0), (3, 0)], [(4, 0), (2, 0)], False),  # six units, but a task runs on one node
        ([(1, 0), (1, 0), (3, 0), (3, 0)], [(4, 0), (4, 0)], True),  # only with the large ones first
        ([(1, 1)] * 2, [(4, 1)], False),
        ([(1, 1)] * 2, [(4, 1), (1, 1)], True),
        ([(4, 0), (1, 1)], [(4, 1), (4, 0)], True),  # only with the GPU's node left to the task that takes it
        ([(2, 0), (2, 1)], [(4, 1)], True),
    ],
)
def test_tasks_fit_where_each_finds_room_on_one_node(tasks, sizes, fits):
    asked = [Resources(*task) for task in tasks]
    assert fit_together(asked, nodes(*sizes)) is fits
    assert fit_together(asked[::-1], nodes(*sizes)[::-1]) is fits


def test_an_error_names_what_is_needed_and_what_is_declared():
    with pytest.raises(
        ValueError,
        match=r"3 tasks have to run at the same time and need 6 computing units and 1 GPUs, but .* n0 4 "
        r"computing units and 1 GPUs, n1 1 computing units\. Use fewer workers, simulators or threads, or declare "
        r"more .*--units",
    ):
        check_fit([Resources(2), Resources(2), Resources(2, 1)], nodes((4, 1), (1, 0)))


def test_tasks_that_would_wait_for_each_other_on_gpus_are_an_error():
    limited = Resources(cpus=2, gpus=1, gpu_tasks=2)
    check_limits([limited] * 2 + [Resources()] * 5)
    check_limits([Resources(gpus=1)] * 5)
    with pytest.raises(ValueError, match=r"3 tasks with a GPU each .* num_gpu=2 limits them; use num_gpu=3"):
        check_limits([limited] * 3 + [Resources()])


@pytest.mark.parametrize(
    ("node", "affinity", "named"),
    [
        (("localhost", 4), "automatic", True),
        (("127.0.0.1", 4), None, True),
        (("localhost", 2), "automatic", False),
        (("localhost", 4), "disabled", False),
        (("elsewhere", 4), "automatic", False),
    ],
)
def test_the_error_of_a_lost_task_names_units_beyond_the_cores(monkeypatch, tmp_path, node, affinity, named):
    declare_nodes(monkeypatch, tmp_path, node)
    with (tmp_path / "jvm_options").open("a") as options:
        options.write(f"-Dcompss.worker.cpu_affinity={affinity}\n" if affinity else "")
    text = str(lost_task_error(declared_nodes(), cores=2))
    assert text.startswith("COMPSs lost a task: ")
    assert (f"4 computing units are declared on {node[0]}, which has 2 cores" in text) == named
    assert ("--cpu_affinity=disabled" in text) == named
    assert ("memory" in text) != named
