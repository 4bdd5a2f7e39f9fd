"""A few seeds of what ``make simulate`` runs many of; what it has found; and how it reports."""

import subprocess
import sys
from contextlib import suppress

import pytest

from tests.helpers.documents import ROOT
from tests.simulation import __main__ as program
from tests.simulation.engine import Fault
from tests.simulation.fibers import FiberEvents
from tests.simulation.planting import PATCHES, main
from tests.simulation.shrinking import pasted, shrunk
from tests.simulation.simulate import faults_of, simulate
from tests.simulation.world import World


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_a_few_seeds(first):
    for seed in range(first, first + 10):
        simulate(seed)


@pytest.mark.slow
def test_a_few_hundred_seeds():
    for seed in range(40, 340):
        simulate(seed)


def test_the_planted_bugs_are_there_to_be_found():
    assert len(PATCHES) >= 20
    for patch in PATCHES:
        subprocess.run(["git", "apply", "--check", patch], cwd=ROOT, check=True)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_planted_bugs_are_found(capsys):
    main(100.0)
    found, planted = map(int, capsys.readouterr().out.splitlines()[-1].removesuffix(" found").split(" of "))
    assert found >= 0.9 * planted


def test_nothing_waits_by_the_time_of_the_day():
    """It may be set back: it goes into records and file names, and deadlines are those of a monotonic clock."""
    users = {path.stem for path in (ROOT / "compss_train").rglob("*.py") if "time.time()" in path.read_text()}
    assert users == {"description", "files", "records", "rounds", "train"}


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
        assert world.events._fibers
        raise KeyError
    assert not world.events._fibers


def test_a_thread_may_exit():
    with World(3, [], FiberEvents) as world:
        world.events.start(lambda: sys.exit())
        world.events.wait(lambda: False, 1.0)


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


def test_a_failure_is_printed_as_a_test():
    text = pasted(7, [Fault("late", "task", 3, 60.0)], RuntimeError("first\nlast line"))
    namespace = {"Fault": Fault, "simulate": lambda *given: namespace.update(given=given)}
    exec(text, namespace)
    namespace["test_seed_7"]()
    assert namespace["given"] == (7, [Fault("late", "task", 3, 60.0)])
    assert "# last line" in text


def test_what_threads_have_ended_with_is_part_of_the_failure():
    def ended_with(error):
        with World(0, [], FiberEvents) as world:
            world.events.errors.append(KeyError("lost"))
            if error is not None:
                raise error

    with pytest.raises(ExceptionGroup, match=r"threads ended with errors, the first with KeyError\('lost'\)"):
        ended_with(None)
    with pytest.raises(RuntimeError, match="a thread still waits") as raised:
        ended_with(RuntimeError("a thread still waits"))
    assert "# threads ended with errors, the first with KeyError('lost')" in pasted(7, [], raised.value)


def test_different_results_are_reported_with_a_seed_that_fails(monkeypatch, capsys):
    def differing(seed, faults=None, run=None):
        if seed == 5 and run is not None:
            run._differences.append("a task has different results for the same inputs")
            raise ValueError
        return simulate(seed)

    monkeypatch.setattr(program, "simulate", differing)
    assert program.main(2, 5) == 1
    shown = capsys.readouterr().out
    assert "def test_seed_5" in shown
    assert "# a task has different results" in shown
