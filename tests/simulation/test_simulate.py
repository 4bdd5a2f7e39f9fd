"""A few seeds of what ``make simulate`` runs many of; what it has found; and how it reports."""

import subprocess
from contextlib import suppress

import pytest

from tests.helpers.processes import ROOT
from tests.simulation import known_results
from tests.simulation.engine import Fault, FaultPlan, ProcessDied, SimulatedEngine
from tests.simulation.fibers import FiberEvents
from tests.simulation.known_results import KnownResults
from tests.simulation.online import simulate_online
from tests.simulation.planting import PATCHES, main
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.simulate import faults_of, pasted, shrunk, simulate
from tests.simulation.world import World


@pytest.mark.parametrize("first", range(0, 16, 8))
def test_a_few_seeds(first):
    for seed in range(first, first + 8):
        simulate(seed)


@pytest.mark.slow
def test_a_few_hundred_seeds():
    for seed in range(16, 340):
        simulate(seed)


def test_the_planted_bugs_are_there_to_be_found():
    assert len(PATCHES) >= 20
    for patch in PATCHES:
        subprocess.run(["git", "apply", "--check", patch], cwd=ROOT, check=True)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_planted_bugs_are_found(capsys):
    main(100.0)
    found, planted = map(
        int, capsys.readouterr().out.splitlines()[-1].removesuffix(" found").split(" of ")
    )
    assert found >= 0.9 * planted


def test_nothing_waits_by_the_time_of_the_day():
    """It may be set back: it goes into records and file names, and deadlines are those of a
    monotonic clock. A study that was started again knows by it when a job was submitted, and waits
    at most as long as for one of its own. Files may be newer than a program.
    """
    users = {
        path.stem
        for path in (ROOT / "compss_train").rglob("*.py")
        if "time.time()" in path.read_text()
    }
    of_studies = {"study_monitor", "study_state", "job_journal", "job_queue"}
    assert users == {"files", "reports", "round_records", "rounds", "sources", "train"} | of_studies


@pytest.mark.parametrize("kind", ["jump", "back"])
def test_clocks_that_jump_change_nothing(kind):
    for seed in (11, 15, 17):
        place = "event" if seed == 17 else "moment"
        assert simulate(seed, [Fault(kind, place, at, 50_000.0) for at in (3, 20)]).fired


def test_a_simulation_that_fails_leaves_no_threads():
    world = World(3, [], FiberEvents)
    with suppress(KeyError), world:
        world.events.start(lambda: world.events.wait(lambda: False))
        world.events.wait(lambda: False, 1.0)
        assert world.events.fibers
        raise KeyError
    assert not world.events.fibers


def test_the_coordinator_of_an_online_fit_is_killed_and_resumed():
    for seed, at in ((3, 90), (11, 150), (19, 300)):
        assert simulate(seed, [Fault("kill", "moment", at)]).fits == 2


@pytest.mark.parametrize("seed", [11, 15, 19])  # with checkpoints, a parameter server, online
def test_a_seed_repeats_itself(seed):
    first = simulate(seed)
    assert first == simulate(seed)
    assert faults_of(seed) == faults_of(seed) != faults_of(seed + 8)


def test_a_failure_is_shrunk_to_the_fewest_faults():
    faults = [Fault("die", "task", number) for number in range(20)]
    needed = {faults[3], faults[17]}
    assert shrunk(faults, lambda kept: needed <= set(kept)) == [faults[3], faults[17]]
    assert shrunk(faults, lambda kept: True) == []


def test_what_threads_have_ended_with_is_part_of_the_failure():
    def ended_with(error):
        with World(0, [], FiberEvents) as world:
            world.events.errors.append(KeyError("lost"))
            if error is not None:
                raise error

    with pytest.raises(
        ExceptionGroup, match=r"threads ended with errors, the first with KeyError\('lost'\)"
    ):
        ended_with(None)
    with pytest.raises(RuntimeError, match="a thread still waits") as raised:
        ended_with(RuntimeError("a thread still waits"))
    assert "# threads ended with errors, the first with KeyError('lost')" in pasted(
        7, [], raised.value
    )


WITH_MESSAGES = 3, 7
"""Seeds that leave these when divided by 8 have messages: their tasks run."""

RUNS: list[object] = []


def number_of_runs():
    RUNS.append(None)
    return len(RUNS)


@pytest.fixture(autouse=True)
def runs():
    RUNS.clear()
    return RUNS


def results(known, task, *arguments):
    engine = SimulatedEngine(run=known)
    refs = [engine.publish(argument) for argument in arguments]
    return engine.fetch([engine.submit(task, *refs)])[0]


def test_different_results_for_the_same_inputs_are_an_error():
    known = KnownResults()
    for _ in range(known_results.CHECKED):
        assert results(known, number_of_runs) == 1
    known.check()
    assert results(known, number_of_runs) == 1
    with pytest.raises(
        RuntimeError, match=r"different results for the same inputs: \[\[2\], \[1\]\]"
    ):
        known.check()
    known.check()


@pytest.mark.slow  # of the tests' own
def test_known_results_change_no_simulation(monkeypatch):
    monkeypatch.setattr(known_results, "CHECKED", 2)
    known = KnownResults()
    for seed in (*range(7), *range(SCENARIOS * 8, SCENARIOS * 8 + 7)):
        if seed % 8 not in WITH_MESSAGES:
            assert simulate(seed, run=known) == simulate(seed)
    known.check()
    assert known.found > 25


@pytest.mark.parametrize(
    ("seed", "faults"),
    [
        # there are 2 checkpoints, and 1 were to be kept
        (157, [Fault("kill", "disk", 25)]),
        # ['.round-000000.vm.4194305.old'] are left in the folder of checkpoints
        (558, [Fault("kill", "disk", 26)]),
        # the checkpoint of round 0 was written, and there are those of []
        (394, [Fault("kill", "event", 19), Fault("kill", "disk", 4)]),
        # TimeoutError: tcp://127.0.0.1:40001 has not answered for 60.0 s; check that the server is
        # running
        (143, [Fault("jump", "event", 13, 1800.0)]),
        # 200000 events have happened, and a thread still waits (for a task whose process died
        # twice)
        (50243, [Fault("mute", "task", 3), Fault("die", "message", 68)]),
        # TimeoutError: the server has not answered for 60.0 s (two messages in a row that were late
        # by 9,000 s)
        (20002847, [Fault("late", "message", 1, 9000.0), Fault("late", "message", 0, 9000.0)]),
        # TimeoutError (the answer overtook the handshake when the clock jumped)
        (20015463, [Fault("jump", "event", 36, 1800.0)]),
        # the checkpoint of round 0 was written, and there are those of [] (a killed program had not
        # synced it)
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


@pytest.mark.parametrize("at", [50, 80, 95])
@pytest.mark.parametrize("seed", [6, 20, 40, 47, 58])
def test_a_worker_that_dies_without_saves_loses_no_sample(seed, at):
    """Simulations run again, and so does a sender with a name: seeds 40 and 58 have one."""
    assert simulate_online(seed, [Fault("die", "message", at)])[0].fired


def test_connections_of_online_fits_that_break():
    # ConnectionLostError: connection lost: the connection is closed
    # the engine still holds ['result of simulate_and_send 3']
    simulate_online(27, [Fault("cut", "message", 42, 0.0), Fault("cut", "message", 78, 0.0)])
    simulate_online(252, [Fault("cut", "message", 5, 0.0)])
