import os
from contextlib import nullcontext

import pytest

from compss_train.engines import Resources
from compss_train.engines.compss.runtime import (
    JVM_OPTIONS,
    check_fit,
    check_limits,
    declared_nodes,
    lost_task_error,
)
from compss_train.engines.nodes import Node
from tests.engines.compss.applications import declare_nodes


def test_nodes_are_those_of_the_configuration(monkeypatch, tmp_path):
    declare_nodes(monkeypatch, tmp_path, ("first", 4), ("second", 2, 3))
    assert declared_nodes() == [Node("first", 4, 0), Node("second", 2, 3)]


def test_without_a_configuration_no_nodes_are_known(monkeypatch, tmp_path):
    monkeypatch.delenv(JVM_OPTIONS, raising=False)
    assert declared_nodes() == []
    monkeypatch.setenv(JVM_OPTIONS, str(tmp_path / "nothing"))
    assert declared_nodes() == []
    declare_nodes(monkeypatch, tmp_path, ("first", 4))
    (tmp_path / "resources.xml").write_text("<ResourcesList>")
    assert declared_nodes() == []


def nodes(*sizes):
    return [Node(f"n{place}", *size) for place, size in enumerate(sizes)]


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
    for order in (1, -1):
        with nullcontext() if fits else pytest.raises(ValueError, match="they do not fit"):
            check_fit(asked[::order], nodes(*sizes)[::order])


def test_an_error_names_what_is_needed_and_what_is_declared():
    with pytest.raises(
        ValueError,
        match=r"3 tasks have to run at the same time and need 6 computing units and 1 GPUs, but .* n0 4 "
        r"computing units and 1 GPUs, n1 1 computing units\. Use fewer workers, simulators or threads, or declare "
        r"more .*--units",
    ):
        check_fit([Resources(2), Resources(2), Resources(2, 1)], nodes((4, 1), (1, 0)))


def test_tasks_that_wait_for_each_other_on_gpus_are_errors():
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
def test_the_error_of_lost_tasks_names_units_beyond_the_cores(monkeypatch, tmp_path, node, affinity, named):
    declare_nodes(monkeypatch, tmp_path, node)
    with (tmp_path / "jvm_options").open("a") as options:
        options.write(f"-Dcompss.worker.cpu_affinity={affinity}\n" if affinity else "")
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    text = str(lost_task_error(declared_nodes()))
    assert text.startswith("COMPSs lost a task: ")
    assert (f"4 computing units are declared on {node[0]}, which has 2 cores" in text) == named
    assert ("--cpu_affinity=disabled" in text) == named
    assert ("memory" in text) != named
