"""The queue of simulations, against a model; without engine and processes."""

import itertools
import time
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train.exceptions import SimulationError, WorkerTraceback
from compss_train.online.simulation_queue import REPORT_SECONDS, SimulationQueue, Status


def started(simulations):
    """Start the next one, as the coordinator does."""
    simulation = simulations.next()
    if simulation is not None:
        simulation.status = Status.RUNNING
    return simulation


class Clock:
    """A clock that is set by hand."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def make(inputs, retries=2, clock=time.monotonic):
    return SimulationQueue(inputs, retries, itertools.count().__next__, clock)


outcomes = st.sampled_from(["finish", "fail", "interrupt", "lose"])


@given(st.integers(0, 6), st.integers(0, 2), st.integers(1, 3), st.lists(outcomes), st.randoms())
def test_every_input_runs_until_done_or_out_of_retries(inputs, retries, at_a_time, todo, random):
    simulations = make(range(inputs), retries)
    failures, done, given_up, runs = [0] * inputs, set(), set(), [0] * inputs
    allowed = [1] * inputs
    todo = iter(todo)
    while not simulations.all_ended:
        while len(simulations.running) < at_a_time and (simulation := started(simulations)) is not None:
            runs[simulation.value] += 1
        if not simulations.running:
            continue
        each = random.choice(simulations.running)
        outcome = next(todo, "finish")
        if outcome == "finish":
            simulations.mark_done(each, 5)
            done.add(each.value)
        elif outcome == "fail":
            failures[each.value] += 1
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                again = simulations.record_failure(each, "oh")
            assert again == (failures[each.value] <= retries)
            if again:
                simulations.requeue(each)
                allowed[each.value] += 1
            else:
                given_up.add(each.value)
        elif outcome == "interrupt":
            simulations.requeue(each)
            allowed[each.value] += 1
        if outcome == "lose" and simulations.done:  # a worker dies with its samples
            lost = random.choice(simulations.done)
            simulations.requeue(lost)
            done.remove(lost.value)
            allowed[lost.value] += 1
        assert simulations.counts() == {
            "running": len(simulations.running),
            "done": len(done),
            "failed": len(given_up),
        }
        assert {one.value for one in simulations.done} == done
    assert done | given_up == set(range(inputs))
    assert runs == allowed
    assert simulations.next() is None


@given(st.integers(0, 20))
def test_an_endless_iterator_is_consumed_on_demand(asked):
    read = itertools.count()
    simulations = make(read)
    got = [started(simulations) for _ in range(asked)]
    assert [each.value for each in got] == [each.number for each in got] == list(range(asked))
    assert next(read) == asked
    assert not simulations.all_ended


def test_requeued_simulations_precede_further_inputs():
    simulations = make("abcd")
    first, second = started(simulations), started(simulations)
    simulations.requeue(second)
    simulations.requeue(first)
    assert [started(simulations).value for _ in range(3)] == ["b", "a", "c"]
    assert simulations.get(1) is second
    assert simulations.get(77) is None


def test_all_have_ended_without_inputs_and_after_empty_inputs():
    assert make(None).all_ended
    simulations = make(())
    assert simulations.next() is None
    assert simulations.all_ended
    assert simulations.counts() == {"running": 0, "done": 0, "failed": 0}


def test_an_exhausted_iterator_is_not_advanced_again():
    asked = []

    def inputs():
        asked.append(1)
        return
        yield

    simulations = make(inputs())
    for _ in range(3):
        assert simulations.next() is None
    assert asked == [1]


def test_a_forgotten_simulation_counts_as_done():
    simulations = make("a")
    simulation = started(simulations)
    simulations.mark_done(simulation, 3)
    assert (simulation.samples, simulations.done) == (3, [simulation])
    simulations.forget(simulation)
    assert (simulations.get(0), simulations.done) == (None, [])
    assert simulations.counts()["done"] == 1
    assert simulations.next() is None
    assert simulations.all_ended


def test_failures_warn_with_the_input_and_the_last_one_with_the_traceback():
    simulations = make(["x" * 1000], retries=1)
    simulation = started(simulations)
    with pytest.warns(UserWarning, match=r"simulation 0 of input '?x+.* failed: oh; retry 1 of 1") as warned:
        assert simulations.record_failure(simulation, "oh", "Traceback 1")
    assert len(str(warned[0].message)) < 500
    simulations.requeue(simulation)
    assert started(simulations) is simulation
    with pytest.warns(UserWarning, match="simulation 0 of input .*\n*.*") as warned:
        assert not simulations.record_failure(simulation, "oh", "Traceback 2")
    assert "Traceback 2" in str(warned[0].message)
    assert (simulation.status, simulations.get(0)) == (Status.FAILED, None)


def fail_for_good(simulations, simulation, retries=0):
    """Let a simulation fail until it is skipped; each failure warns."""
    for number in range(retries + 1):
        with pytest.warns(UserWarning, match="simulation .* failed: oh") as warned:
            assert simulations.record_failure(simulation, "oh", "where it was") == (number < retries)
        assert len(warned) == 1
        again = f"retry {number + 1} of {retries}"
        assert (again if number < retries else f"oh; skipped after {retries + 1} failures") in str(
            warned[0].message
        )


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_failures_without_any_sample_raise_with_their_traceback(clock, retries):
    simulations = make("ab", retries, clock=clock)
    simulation = started(simulations)
    fail_for_good(simulations, simulation, retries)
    clock.now += REPORT_SECONDS
    simulations.check(0)  # earlier samples may not have been reported yet
    for later, final in ((0, True), (0.1, False), (0, True)):
        clock.now += later
        with pytest.raises(
            SimulationError,
            match=rf"simulation 0 of input 'a' failed: oh \(failures: {retries + 1}\), and no simulation",
        ) as raised:
            simulations.check(0, final=final)
        assert isinstance(raised.value.__cause__, WorkerTraceback)
        assert "where it was" in str(raised.value.__cause__)
    simulations.check(1, final=True)


def test_the_first_failed_simulation_is_named(clock):
    simulations = make("ab", retries=0, clock=clock)
    for simulation in (started(simulations), started(simulations)):
        clock.now += 1
        with pytest.warns(UserWarning, match="skipped after"):
            assert not simulations.record_failure(simulation, "its process died")
    clock.now += REPORT_SECONDS - 0.5  # since the first failure; less since the second
    with pytest.raises(SimulationError, match="input 'a' failed: its process died") as raised:
        simulations.check(0)
    assert raised.value.__cause__ is None


def test_failures_with_retries_left_do_not_raise(clock):
    simulations = make("ab", retries=1, clock=clock)
    simulations.check(0, final=True)
    with pytest.warns(UserWarning, match="; retry 1 of"):
        assert simulations.record_failure(started(simulations), "oh")
    clock.now += 1000
    simulations.check(0, final=True)


@pytest.mark.parametrize("gave", ["finished before", "finished later", "received"])
def test_failures_after_a_first_sample_only_warn(clock, gave):
    simulations = make("ab", retries=0, clock=clock)
    simulation, other = started(simulations), started(simulations)
    if gave == "finished before":
        simulations.mark_done(other, 1)
    fail_for_good(simulations, simulation)
    if gave == "finished later":
        simulations.mark_done(other, 1)
    clock.now += 1000
    simulations.check(1 if gave == "received" else 0, final=True)


def test_a_simulation_without_samples_does_not_count(clock):
    simulations = make("ab", retries=0, clock=clock)
    simulation, other = started(simulations), started(simulations)
    simulations.mark_done(other, 0)
    fail_for_good(simulations, simulation)
    with pytest.raises(SimulationError):
        simulations.check(0, final=True)


def test_completion_clears_an_interruption():
    simulations = make("a")
    simulation = started(simulations)
    simulation.interrupted_since = 5.0
    simulations.mark_done(simulation, 1)
    assert simulation.interrupted_since is None
