"""Which simulation runs when: against a model, without engine and processes."""

import itertools
import time
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train.exceptions import SimulationError, WorkerTraceback
from compss_train.online import event_server as attendance
from compss_train.online import simulations as simulations_module
from compss_train.online.event_server import Attendance
from compss_train.online.simulations import Simulations, Status


def started(simulations):
    """Let the next one run, as the coordinator does."""
    simulation = simulations.next()
    if simulation is not None:
        simulation.status = Status.RUNNING
    return simulation


def make(inputs, retries=2):
    return Simulations(inputs, retries, itertools.count().__next__)


outcomes = st.sampled_from(["finish", "fail", "interrupt", "lose"])


@given(st.integers(0, 6), st.integers(0, 2), st.integers(1, 3), st.lists(outcomes), st.randoms())
def test_every_input_is_run_until_it_is_done_or_has_failed_too_often(inputs, retries, at_a_time, todo, random):
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
            simulations.finished(each, 5)
            done.add(each.value)
        elif outcome == "fail":
            failures[each.value] += 1
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                again = simulations.has_failed(each, "oh")
            assert again == (failures[each.value] <= retries)
            if again:
                simulations.run_again(each)
                allowed[each.value] += 1
            else:
                given_up.add(each.value)
        elif outcome == "interrupt":
            simulations.run_again(each)
            allowed[each.value] += 1
        if outcome == "lose" and simulations.done:  # a worker takes its samples along
            lost = random.choice(simulations.done)
            simulations.run_again(lost)
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
def test_an_endless_iterator_is_read_no_further_than_asked(asked):
    read = itertools.count()
    simulations = make(read)
    got = [started(simulations) for _ in range(asked)]
    assert [each.value for each in got] == [each.number for each in got] == list(range(asked))
    assert next(read) == asked
    assert not simulations.all_ended


def test_what_is_to_run_again_comes_before_further_inputs():
    simulations = make("abcd")
    first, second = started(simulations), started(simulations)
    simulations.run_again(second)
    simulations.run_again(first)
    assert [started(simulations).value for _ in range(3)] == ["b", "a", "c"]
    assert simulations.of(1) is second
    assert simulations.of(77) is None


def test_without_inputs_all_have_ended_at_once_and_after_empty_ones_when_that_is_known():
    assert make(None).all_ended
    simulations = make(())
    assert simulations.next() is None
    assert simulations.all_ended
    assert simulations.counts() == {"running": 0, "done": 0, "failed": 0}


def test_an_exhausted_iterator_is_not_asked_again():
    asked = []

    def inputs():
        asked.append(1)
        return
        yield

    simulations = make(inputs())
    for _ in range(3):
        assert simulations.next() is None
    assert asked == [1]


def test_what_is_forgotten_counts_as_done_and_cannot_run_again():
    simulations = make("a")
    simulation = started(simulations)
    simulations.finished(simulation, 3)
    assert (simulation.samples, simulations.done) == (3, [simulation])
    simulations.forget(simulation)
    assert (simulations.of(0), simulations.done) == (None, [])
    assert simulations.counts()["done"] == 1
    assert simulations.next() is None
    assert simulations.all_ended


def test_failures_are_told_with_the_input_and_the_last_with_the_traceback():
    simulations = make(["x" * 1000], retries=1)
    simulation = started(simulations)
    with pytest.warns(
        UserWarning, match=r"simulation 0 of input '?x+.* failed: oh; it runs again \(1 of 1\)"
    ) as told:
        assert simulations.has_failed(simulation, "oh", "Traceback 1")
    assert len(str(told[0].message)) < 500
    simulations.run_again(simulation)
    assert started(simulations) is simulation
    with pytest.warns(UserWarning, match="simulation 0 of input .*\n*.*") as told:
        assert not simulations.has_failed(simulation, "oh", "Traceback 2")
    assert "Traceback 2" in str(told[0].message)
    assert (simulation.status, simulations.of(0)) == (Status.FAILED, None)


@pytest.fixture
def clock(monkeypatch):
    """Stand for the time; give it as a list of one."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def given_up(simulations, simulation, retries=0):
    """Let a simulation fail until it is left out; each time is warned about."""
    for number in range(retries + 1):
        with pytest.warns(UserWarning, match="simulation .* failed: oh") as told:
            assert simulations.has_failed(simulation, "oh", "where it was") == (number < retries)
        assert len(told) == 1
        again = f"runs again ({number + 1} of {retries})"
        assert (again if number < retries else f"oh, {retries + 1} times; it is left out") in str(told[0].message)


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_simulations_that_give_nothing_at_all_are_an_error_with_their_traceback(clock, retries):
    simulations = make("ab", retries)
    simulation = started(simulations)
    given_up(simulations, simulation, retries)
    clock[0] += simulations_module.REPORT_SECONDS
    simulations.check(0)  # what has come until then is reported by now, and no earlier
    for later, at_last in ((0, True), (0.1, False), (0, True)):
        clock[0] += later
        with pytest.raises(
            SimulationError, match=rf"simulation 0 of input 'a' failed: oh \({retries + 1} times\), and no other"
        ) as raised:
            simulations.check(0, at_last=at_last)
        assert isinstance(raised.value.__cause__, WorkerTraceback)
        assert "where it was" in str(raised.value.__cause__)
    simulations.check(1, at_last=True)


def test_the_first_that_was_given_up_is_named_and_without_a_traceback_there_is_no_cause(clock):
    simulations = make("ab", retries=0)
    for simulation in (started(simulations), started(simulations)):
        clock[0] += 1
        with pytest.warns(UserWarning, match="left out"):
            assert not simulations.has_failed(simulation, "its process died")
    clock[0] += simulations_module.REPORT_SECONDS - 0.5  # after the first one; the second is younger
    with pytest.raises(SimulationError, match="input 'a' failed: its process died") as raised:
        simulations.check(0)
    assert raised.value.__cause__ is None


def test_failures_that_may_run_again_are_no_error_yet(clock):
    simulations = make("ab", retries=1)
    simulations.check(0, at_last=True)
    with pytest.warns(UserWarning, match="runs again"):
        assert simulations.has_failed(started(simulations), "oh")
    clock[0] += 1000
    simulations.check(0, at_last=True)


@pytest.mark.parametrize("gave", ["finished before", "finished later", "received"])
def test_after_a_first_sample_failures_are_only_warnings(clock, gave):
    simulations = make("ab", retries=0)
    simulation, other = started(simulations), started(simulations)
    if gave == "finished before":
        simulations.finished(other, 1)
    given_up(simulations, simulation)
    if gave == "finished later":
        simulations.finished(other, 1)
    clock[0] += 1000
    simulations.check(1 if gave == "received" else 0, at_last=True)


def test_one_that_ends_without_a_sample_has_given_none(clock):
    simulations = make("ab", retries=0)
    simulation, other = started(simulations), started(simulations)
    simulations.finished(other, 0)
    given_up(simulations, simulation)
    with pytest.raises(SimulationError):
        simulations.check(0, at_last=True)


def test_one_that_can_go_on_is_not_interrupted_any_more():
    simulations = make("a")
    simulation = started(simulations)
    simulation.interrupted_since = 5.0
    simulations.finished(simulation, 1)
    assert simulation.interrupted_since is None


def test_who_was_there_and_is_away_too_long_is_lost(clock):
    attendance_ = Attendance()
    clock[0] += 2 * attendance.RETURN_SECONDS
    assert not attendance_.is_lost  # it never came
    attendance_.arrive("peer")
    clock[0] += 2 * attendance.RETURN_SECONDS
    assert not attendance_.is_lost
    attendance_.leave()
    clock[0] += attendance.RETURN_SECONDS
    assert not attendance_.is_lost
    clock[0] += 1
    assert attendance_.is_lost
    attendance_.arrive("peer")
    assert not attendance_.is_lost
