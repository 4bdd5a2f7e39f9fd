"""Programs on three nodes of different size that ``ray start`` has started; docs/testing.md lists
what was run.
"""

import json
import signal
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
FITS = 50
"""Fits of a program whose leaks would be seen."""
PROGRAM = str(ROOT / "tests/ray/three_nodes.py")


@pytest.fixture(scope="module")
def cluster():
    """The environment of programs on nodes of 1, 2 and 1 CPUs with small object stores."""
    with started_by_hand(cpus=(1, 2, 1), store=80_000_000) as environment:
        yield environment


def started(environment, output, place="auto", **options):
    command = [sys.executable, PROGRAM, place, str(output), json.dumps(options)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, **pipes)


def await_end(process, code=0):
    printed, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == code, printed + errors
    return printed


def assert_serial_bits(output, **options):
    with np.load(output) as parameters:
        for name, array in train("serial", **options).items():
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


def test_a_thousand_blocks_in_stores_that_hold_a_third_have_the_serial_bits(cluster, tmp_path):
    options = {"blocks": 1000, "rows": 8000, "width": 8000, "epochs": 1}
    output = tmp_path / "parameters.npz"
    await_end(started(cluster, output, **options))
    assert_serial_bits(output, **options)


def test_a_program_that_is_killed_goes_on_in_another_cluster(cluster, tmp_path):
    output = tmp_path / "parameters.npz"
    folder = str(tmp_path / "saved")
    await_end(started(cluster, output, folder=folder, kills=True), code=-signal.SIGKILL)
    with started_by_hand(cpus=(2, 2)) as environment:
        await_end(started(environment, output, folder=folder))
    assert_serial_bits(output)


def test_many_fits_leave_nothing_in_the_cluster(cluster, tmp_path):
    printed = await_end(started(cluster, tmp_path, "leaks", fits=FITS, epochs=1))
    early, late = json.loads(printed.splitlines()[-1])
    assert early == late
