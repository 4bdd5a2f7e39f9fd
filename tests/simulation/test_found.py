"""What simulations have found, each as the test that ``make simulate`` printed."""

import pytest

from tests.simulation.engine import Fault, FaultPlan, ProcessDied, SimulatedEngine
from tests.simulation.online import simulate_online
from tests.simulation.simulate import simulate


@pytest.mark.parametrize(
    ("seed", "faults"),
    [
        # there are 2 checkpoints, and 1 were to be kept
        (157, [Fault("kill", "disk", 25)]),
        # ['.round-000000.vm.4194305.old'] are left in the folder of checkpoints
        (558, [Fault("kill", "disk", 26)]),
        # the checkpoint of round 0 was written, and there are those of []
        (394, [Fault("kill", "event", 19), Fault("kill", "disk", 4)]),
        # TimeoutError: tcp://127.0.0.1:40001 has not answered for 60.0 s; check that the server is running
        (143, [Fault("jump", "event", 13, 1800.0)]),
        # 200000 events have happened, and a thread still waits (for a task whose process died twice)
        (50243, [Fault("mute", "task", 3), Fault("die", "message", 68)]),
        # TimeoutError: the server has not answered for 60.0 s (two messages in a row that were late by 9,000 s)
        (20002847, [Fault("late", "message", 1, 9000.0), Fault("late", "message", 0, 9000.0)]),
        # TimeoutError (the answer overtook the handshake when the clock jumped)
        (20015463, [Fault("jump", "event", 36, 1800.0)]),
        # the checkpoint of round 0 was written, and there are those of [] (a killed program had not synced it)
        (60, [Fault("kill", "disk", 20), Fault("kill", "disk", 23), Fault("full", "disk", 9)]),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "",
)
def test_a_seed_that_has_failed(seed, faults):
    simulate(seed, faults)


@pytest.mark.parametrize(("kind", "deadly"), [("mute", 1), ("twice", 2)])
def test_a_process_that_dies_of_two_faults_at_once(kind, deadly):
    runs = []

    def task():
        runs.append(len(runs) + 1)
        if len(runs) == deadly:
            raise ProcessDied
        return "done"

    engine = SimulatedEngine(1, faults=FaultPlan([Fault(kind, "task", 0)]))
    assert engine.fetch([engine.submit(task)]) == ["done"]
    assert runs == [1, 2]


@pytest.mark.parametrize("seed", [11, 27])
def test_a_worker_is_suspended_while_it_connects(seed):
    # TimeoutError: timed out
    simulate_online(seed, [Fault("jump", "moment", at, 50_000.0) for at in range(3, 12)])


def test_connections_of_online_fits_that_break():
    # ConnectionLostError: connection lost: the connection is closed
    # the engine still holds ['result of simulate_and_send 3']
    simulate_online(27, [Fault("cut", "message", 42, 0.0), Fault("cut", "message", 78, 0.0)])
    simulate_online(252, [Fault("cut", "message", 5, 0.0)])
