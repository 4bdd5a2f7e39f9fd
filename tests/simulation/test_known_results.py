"""Tasks whose results are known do not run again, but for a few that show whether they still come to the same."""

import pytest

from tests.simulation import known_results
from tests.simulation.engine import SimulatedEngine
from tests.simulation.known_results import KnownResults
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.simulate import simulate

WITH_MESSAGES = 3, 7
"""Seeds that leave these when divided by 8 have messages: their tasks run."""

RUNS: list[object] = []


def doubled(values):
    RUNS.append(values)
    return [2 * value for value in values]


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


def test_a_task_runs_once_for_each_input(runs):
    known = KnownResults()
    for _ in range(3):
        assert results(known, doubled, [1]) == [2]
        assert results(known, doubled, [2]) == [4]
    assert runs == [[1], [2]]


def test_some_known_tasks_run_all_the_same(runs):
    known = KnownResults()
    for _ in range(1 + 2 * known_results.CHECKED):
        results(known, doubled, [1])
    assert runs == 3 * [[1]]


def test_different_results_for_the_same_inputs_are_an_error():
    known = KnownResults()
    for _ in range(known_results.CHECKED):
        assert results(known, number_of_runs) == 1
    known.check()
    assert results(known, number_of_runs) == 1
    with pytest.raises(RuntimeError, match=r"different results for the same inputs: \[\[2\], \[1\]\]"):
        known.check()
    known.check()


def test_failures_are_not_known(runs):
    known = KnownResults()
    for _ in range(2):
        with pytest.raises(TypeError):
            results(known, doubled, [None])
    assert runs == 2 * [[None]]


def test_no_more_than_so_many_are_known(monkeypatch, runs):
    monkeypatch.setattr(known_results, "MOST", 2)
    known = KnownResults()
    for number in (1, 2, 3, 1):
        results(known, doubled, [number])
    assert runs == [[1], [2], [3], [1]]


def test_known_results_change_no_simulation(monkeypatch):
    monkeypatch.setattr(known_results, "CHECKED", 2)
    known = KnownResults()
    for seed in (*range(12), *range(SCENARIOS * 8, SCENARIOS * 8 + 12)):
        if seed % 8 not in WITH_MESSAGES:
            assert simulate(seed, run=known) == simulate(seed)
    known.check()
    assert known.found > 50
