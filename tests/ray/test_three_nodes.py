"""Programs on three nodes of different size that ``ray start`` has started; docs/testing.md lists
what was run.
"""

import subprocess
import sys

import numpy as np
import pytest

from tests.helpers.processes import ROOT
from tests.helpers.ray_cluster import started_by_hand
from tests.ray.three_nodes import train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LIMIT = 400
"""Seconds for a program, whose processes may start for minutes on a busy machine."""
PROGRAM = str(ROOT / "tests/ray/three_nodes.py")


@pytest.fixture(scope="module")
def cluster():
    """The environment of programs on nodes of 1, 2 and 1 CPUs with small object stores."""
    with started_by_hand(cpus=(1, 2, 1), store=80_000_000) as environment:
        yield environment


def started(environment, output, how="auto"):
    command = [sys.executable, PROGRAM, how, str(output)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, **pipes)


def await_end(process):
    printed, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, printed + errors


def assert_serial_bits(output):
    with np.load(output) as parameters:
        for name, array in train("serial").items():
            np.testing.assert_array_equal(parameters[name], array, err_msg=name)


@pytest.mark.parametrize("kind", ["task", "actor"])
def test_a_fit_in_a_task_or_an_actor_has_the_serial_bits(cluster, tmp_path, kind):
    output = tmp_path / "parameters.npz"
    await_end(started(cluster, output, kind))
    assert_serial_bits(output)


def test_three_programs_at_once_have_the_serial_bits(cluster, tmp_path):
    outputs = [tmp_path / f"{number}.npz" for number in range(3)]
    programs = [started(cluster, output) for output in outputs]
    for program, output in zip(programs, outputs, strict=True):
        await_end(program)
        assert_serial_bits(output)
