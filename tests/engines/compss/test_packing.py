import pytest

from compss_train.engines import Resources
from compss_train.engines.compss.configuration import DeclaredNode
from compss_train.engines.compss.context import check_together, fit_together


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


def test_too_little_is_told_with_what_is_needed_and_declared():
    with pytest.raises(
        ValueError,
        match=r"3 tasks that need 6 computing units and 1 GPUs .* n0 4 computing units and 1 GPUs, n1 1 computing "
        r"units\. Use fewer workers, simulators or threads, or declare more .*--units",
    ):
        check_together([Resources(2), Resources(2), Resources(2, 1)], nodes((4, 1), (1, 0)))
