"""The simulations of a fit as its coordinator runs them, against a model, on an idle engine."""

import itertools
import warnings
from contextlib import suppress
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train import Simulations, Solver
from compss_train.engines import Traits
from compss_train.exceptions import SimulationError, WorkerTraceback
from compss_train.online.inputs import Inputs
from compss_train.online.simulation_runs import REPORT_SECONDS
from compss_train.online.task_runs import TaskRuns

DONE = {"finished": 5}
DIED = None
OH = {"failed": "oh", "traceback": "where it was"}
INTERRUPTED = {"interrupted": "worker 0 disconnected"}


def simulate(_):
    yield 1.0


class Runs:
    """Simulations without processes: tests say what their tasks send."""

    def __init__(
        self, inputs, retries=2, count=1, checkpoint_every=60.0, simulate=simulate, **options
    ):
        self.lost = []
        self.ended = []
        self.tasks = []
        engine = SimpleNamespace(
            traits=Traits(interruptible=False),
            publish=lambda value: value,
            submit=lambda function, simulate, value, number, *args, resources: self.tasks.append(
                number
            ),
            arrived=lambda refs: [],
            delete=lambda refs: None,
        )
        router = SimpleNamespace(
            number=itertools.count().__next__,
            register=lambda *args: None,
            unregister=lambda client: self.lost,
        )
        self.runs = TaskRuns(
            Simulations(simulate, inputs, count=count, retries=retries, **options),
            Inputs(inputs),
            engine,
            count=count,
            router=router,
            job=SimpleNamespace(
                options=SimpleNamespace(checkpoint_every=checkpoint_every), coordinator=None
            ),
        )
        self.start()

    def start(self):
        """Submit what may run; its tasks connect."""
        self.runs.start()
        for simulation, task in self.running:
            if task.client is None:
                self.send(simulation, "connects")

    @property
    def running(self):
        return self.runs.running

    @property
    def values(self):
        return [simulation.value for simulation, _ in self.running]

    def send(self, simulation, header):
        """Handle a message of a simulation's task."""
        if header == "connects":
            greeting = {"number": simulation.number}
            client = SimpleNamespace(
                greeting=greeting, send=lambda header: self.ended.append(header)
            )
            self.runs.handle(client, greeting)
        else:
            self.runs.handle(simulation.task.client, header)

    def end(self, header, which=0):
        """End a simulation by a message, ignoring warnings; start what may run then."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.send(self.running[which][0], header)
        self.start()

    def lose(self, lacking):
        """Lose a worker with the samples of some streams."""
        self.runs.repeat_lost(
            SimpleNamespace(lacks_samples=lambda stream, samples: stream in lacking)
        )
        self.start()


outcomes = st.sampled_from([DONE, OH, DIED, INTERRUPTED, "lose"])


@given(st.integers(1, 6), st.integers(0, 2), st.integers(1, 3), st.lists(outcomes), st.randoms())
def test_every_input_runs_until_done_or_out_of_retries(inputs, retries, at_a_time, todo, random):
    runs = Runs(range(inputs), retries, at_a_time)
    failures = [0] * inputs
    done = set()
    given_up = set()
    todo = iter(todo)
    while not runs.runs.all_ended:
        assert len(runs.running) <= at_a_time
        which = random.randrange(len(runs.running))
        value = runs.values[which]
        outcome = next(todo, DONE)
        if outcome == "lose":  # a worker dies with the samples of a simulation
            lost = random.choice([None, *sorted(done)])
            runs.lose({lost})
            done.discard(lost)
        else:
            runs.end(outcome, which)
        if outcome is DONE:
            done.add(value)
        elif outcome in (OH, DIED):
            failures[value] += 1
            if failures[value] > retries:
                given_up.add(value)
        counts = {"running": len(runs.running), "done": len(done), "failed": len(given_up)}
        assert runs.runs.counts() == counts
    assert done | given_up == set(range(inputs))
    assert not done & given_up


def test_failures_warn_with_the_input_and_the_last_one_with_the_traceback():
    runs = Runs(["x" * 1000], retries=1)
    with pytest.warns(
        UserWarning, match=r"simulation 0 of input '?x+.* failed: oh; retry 1 of 1"
    ) as warned:
        runs.send(runs.running[0][0], OH)
    assert len(str(warned[0].message)) < 500
    runs.start()
    with pytest.warns(
        UserWarning, match=("simulation 0 of input .*oh; skipped after 2 failures\nwhere it was")
    ):
        runs.send(runs.running[0][0], OH)
    runs.start()
    assert runs.runs.all_ended


def test_an_iterator_that_an_earlier_fit_has_used_up_is_an_error(raises):
    inputs = iter([1.0])
    next(inputs)
    with raises(ValueError, "inputs= has no item"):
        Runs(inputs)


@pytest.mark.parametrize("retries", [0, 1, 3])
@pytest.mark.parametrize(("header", "cause"), [(OH, "where it was"), (DIED, None)])
def test_failures_of_the_first_simulations_raise_if_no_sample_comes(retries, header, cause, clock):
    """However they failed; one of them alone may have a bad input."""
    runs = Runs([*"abcd"], retries)
    for value in "abc":
        clock.now += 2 * REPORT_SECONDS
        runs.runs.check(0)  # of others samples may come
        for _ in range(retries + 1):
            assert runs.values == [value]
            runs.end(header if value == "a" else OH)
    clock.now += REPORT_SECONDS
    runs.runs.check(0)  # earlier samples may not have been reported yet
    runs.runs.check(1)
    clock.now += 0.1
    reason = "its process died" if header is None else "oh"
    said = (
        f"simulation 0 of input 'a' failed: {reason}; 3 simulations were given up, and none "
        "has sent a sample"
    )
    with pytest.raises(SimulationError, match=said) as raised:
        runs.runs.check(0)
    if cause is None:
        assert raised.value.__cause__ is None
    else:
        assert isinstance(raised.value.__cause__, WorkerTraceback)
        assert cause in str(raised.value.__cause__)


AT_A_LINE = {**OH, "place": "NameError at study.py:7"}


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("repeats", [True, False])
def test_failures_of_the_first_simulations_at_one_line_raise_at_once(count, repeats):
    """A mistake needs no retry; other failures have theirs before the next simulation begins."""
    runs = Runs(range(100), 2, count)
    ends = 0
    with suppress(SimulationError):
        while ends < 100:
            runs.runs.check(0)
            runs.end({**AT_A_LINE, "repeats": repeats}, which=ends % count)
            ends += 1
    with pytest.raises(
        SimulationError, match=r"simulation 0 of input 0 failed: oh; the first .* at this line"
    ):
        runs.runs.check(0)
    assert max(3, count) <= ends <= max(3, count) * (1 if repeats and count == 1 else 3)


@pytest.mark.parametrize("other", [{"place": "KeyError at study.py:7"}, {"sent": 1}, {"place": ""}])
def test_other_failures_among_the_first_simulations_do_not_raise_at_once(other):
    runs = Runs(range(100))
    for turn in range(20):
        runs.end({**AT_A_LINE, "repeats": True, **(other if turn == 1 else {})})
        runs.runs.check(0)


def test_a_mistake_is_shown_once_and_is_not_tried_again():
    runs = Runs(range(9))
    texts = []
    for _ in range(3):
        with pytest.warns(UserWarning, match="skipped") as warned:
            runs.send(runs.running[0][0], {**AT_A_LINE, "repeats": True})
        texts += [str(warning.message) for warning in warned]
        runs.start()
    assert texts == [
        f"simulation {number} of input {number} failed: oh; skipped, as it would fail again{trace}"
        for number, trace in enumerate(["\nwhere it was", "", ""])
    ]


def test_a_sample_that_does_not_fit_is_the_error():
    runs = Runs(range(9))
    with pytest.raises(
        SimulationError,
        match=r"^simulation 0 of input 0 yielded what does not fit: two, not three$",
    ):
        runs.send(runs.running[0][0], {**AT_A_LINE, "rejected": "two, not three"})


@pytest.mark.parametrize("steps", [None, lambda value: 5 + value])
def test_solvers_that_differ_in_their_steps_are_warned_of_once(steps):
    run = Runs(range(4), simulate=Solver(["./heat", "{}"], len), steps=steps)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in (5, 5, 7, 8):
            run.send(run.running[0][0], {"finished": 3, "steps": number})
            run.start()
    words = [str(warning.message) for warning in caught]
    if steps is None:
        [warned] = words
        assert warned.startswith(
            "simulation 2 of input 2 has ended after 7 time steps, and simulation 0 of input 0 "
            "after 5: if one of them is not complete, give Simulations(..., steps=)"
        )
    else:
        assert words == []


def test_a_function_may_yield_as_many_samples_as_it_likes():
    run = Runs(range(2))
    for number in (5, 7):
        run.send(run.running[0][0], {"finished": number, "steps": number})
        run.start()


def test_a_hanging_simulation_is_answered_before_its_process_ends():
    run = Runs(range(1), retries=1)
    run.send(run.running[0][0], {"timeout": 4.0, "stack": "where it hangs"})
    assert run.ended == [{"noted": True}]
    with pytest.warns(UserWarning, match=r"no sample within 4\.0 s"):
        run.send(run.running[0][0], DIED)
