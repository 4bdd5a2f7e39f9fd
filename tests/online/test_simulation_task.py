"""The task of a simulation: what it sends, and how it reports its end."""

import re

import cloudpickle
import numpy as np
import pytest
import torch

from compss_train.online.intake import NUMBERS
from compss_train.online.simulation_task import simulate_and_send
from compss_train.online.solver import SteppedX
from tests.online.stub_fits import stub_fit

pytestmark = pytest.mark.usefixtures("short_waits")


def run(running, simulate, value=None, number=0, limit=None, steps=None):
    picked = simulate if isinstance(simulate, bytes) else cloudpickle.dumps(simulate)
    simulate_and_send(
        picked,
        cloudpickle.dumps(value),
        number=number,
        coordinator=running.coordinator.address,
        timeout=limit,
        steps=steps,
    )


def test_a_simulation_sends_all_samples_and_reports_their_number():
    with stub_fit(2) as running:
        run(running, lambda n: ((torch.tensor([float(i)]),) for i in range(n)), 5)
        assert running.coordinator.wait_for("finished") == [5]
        assert [stub.drain() for stub in running.workers] == [[0, 2, 4], [1, 3]]
        run(running, lambda n: iter([]), 5, number=1)
        assert running.coordinator.wait_for("finished", 2) == [5, 0]


def test_x_alone_may_have_its_step():
    with stub_fit() as running:
        run(running, lambda _: (SteppedX(step, np.float32([step])) for step in (1, 3, 5)), number=2)
        assert running.workers[0].buffer.get_batch(3)[NUMBERS].tolist() == [[2, 1], [2, 3], [2, 5]]


def three_samples(_):
    return ((np.float32([step]),) for step in range(3))


@pytest.mark.parametrize(
    ("steps", "sent", "reason", "repeats"),
    [
        (3, 3, None, None),
        (4, 3, "IncompleteError: it ended after 3 of 4 steps", False),
        (2, 2, "ValueError: the simulation has more than the 2 steps of steps=", True),
    ],
    ids=["as many", "fewer", "more"],
)
def test_a_simulation_with_another_number_of_steps_has_failed(steps, sent, reason, repeats):
    with stub_fit() as running:
        run(running, three_samples, steps=steps)
        if reason is None:
            assert running.coordinator.wait_for("steps") == [3]
        else:
            assert running.coordinator.wait_for("failed") == [reason]
            assert running.coordinator.wait_for("repeats") == [repeats]
        assert running.workers[0].buffer.samples_put == sent


def raise_after_two(error):
    def simulate(_):
        yield 1.0
        yield 2.0
        raise error

    return simulate


@pytest.mark.parametrize(
    ("simulate", "sent", "reason"),
    [
        (raise_after_two(ZeroDivisionError("oh")), 2, "ZeroDivisionError: oh"),
        (raise_after_two(SystemExit(3)), 2, "SystemExit: 3"),
        (raise_after_two(FileNotFoundError("gone")), 2, "FileNotFoundError: gone"),
        (
            lambda _: 5,
            0,
            ("TypeError: the simulation returned int; write `yield x, y` for each sample"),
        ),
        (lambda _: None, 0, "TypeError: the simulation returned NoneType"),
        (
            lambda _: (np.float32([1, 2]), np.float32([3, 4])),
            0,
            ("TypeError: the simulation returned tuple"),
        ),
        (lambda _: np.zeros((4, 2), np.float32), 0, "TypeError: the simulation returned ndarray"),
        (lambda _: {"x": 1.0}, 0, "TypeError: the simulation returned dict"),
        (
            lambda _: [(1, 2, 3, 4)],
            0,
            ("TypeError: the simulation yielded a tuple of 4; a sample is"),
        ),
        (lambda _: [1.0, ()], 1, "TypeError: the simulation yielded a tuple of 0; a sample is"),
        (lambda _: [1.0, object()], 1, "ValueError: no tensor can hold this object"),
        (lambda _: [1.0, "text"], 1, "ValueError: no tensor can hold this str: .*; give numbers"),
        (
            lambda _: [1.0, torch.zeros(1, dtype=torch.float8_e5m2)],
            1,
            "TypeError: arrays of torch.float8_e5m2 cannot be sent",
        ),
        (lambda _: [1.0, ([[1.0], [2.0, 3.0]], 0.0)], 1, "ValueError: .*length"),
        (lambda _: [1.0, np.float32([1]).astype(">f4")], 1, "TypeError: .*byte order"),
        (lambda _: [1.0, np.array(["a"])], 1, "TypeError: torch cannot hold dtype <U1"),
        (lambda _: [1.0, ("first", 1.0, 0.0)], 1, "ValueError: .*first"),
        (
            lambda _: [1.0, (np.ones(2), 1.0, 0)],
            1,
            ("TypeError: .* an array first of three; .*(step, x, y)"),
        ),
        (
            lambda _: [{"x": 1.0, "y": 2.0}],
            0,
            ("TypeError: the simulation yielded a dict; a sample is"),
        ),
        (
            lambda _: [1.0, [np.ones(2), np.zeros(2)]],
            1,
            "TypeError: the simulation yielded a list of arrays, which may be x and y or x alone",
        ),
        (
            lambda _: [SteppedX(0, 1.0), [torch.ones(2), 1.0]],
            1,
            "TypeError: the simulation yielded a list of arrays",
        ),
        (lambda _: [1.0, None], 1, "TypeError: the simulation yielded None; a sample is"),
        (lambda _: [1.0, (1.0, None)], 1, "TypeError: .* a tuple with None; .* x alone where"),
        (
            lambda _: [(0, 1.0, 0.0), (0.5, 1.0, 0.0)],
            1,
            ("ValueError: .*the time step 0.5; give its number"),
        ),
        (b"no pickle", 0, "UnpicklingError"),
    ],
    ids=[
        *(
            "raises",
            "exits",
            "no file",
            "number",
            "nothing",
            "a sample",
            "an array",
            "a dict",
            "four",
            "empty",
            "object",
            "text",
            "float8",
            "ragged",
        ),
        *(
            "big-endian",
            "words",
            "first",
            "last",
            "names",
            "list",
            "x and number",
            "none",
            "no y",
            "step",
            "pickle",
        ),
    ],
)
def test_exceptions_of_a_simulation_are_reported_not_raised(simulate, sent, reason):
    with stub_fit() as running:
        run(running, simulate)
        [failed] = running.coordinator.wait_for("failed")
        assert re.match(reason, failed)
        # Flushed, as no other attempt may follow.
        assert running.workers[0].buffer.samples_put == sent
        assert running.coordinator.received("traceback")[0].startswith("Traceback")
        assert running.coordinator.received("finished") == []


def test_a_paired_simulation_sends_steps():
    with stub_fit(paired=True) as running:
        run(running, lambda _: [(step, torch.ones(2), torch.zeros(1)) for step in range(3)])
        assert running.coordinator.wait_for("finished") == [3]
        run(running, lambda _: [(torch.ones(2), torch.zeros(1))], number=1)
        assert (
            "a sample is (step, x, y), as the buffer pairs time steps"
            in running.coordinator.wait_for("failed")[0]
        )
