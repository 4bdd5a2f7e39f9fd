"""The simulations of a fit as its coordinator runs them, against a model; on an engine that runs nothing."""

import itertools
import warnings
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train import Simulations
from compss_train.engines import Traits
from compss_train.exceptions import SimulationError, WorkerTraceback
from compss_train.online.inputs import Inputs
from compss_train.online.sources import REPORT_SECONDS, SimulationRuns

DONE, DIED, OH = {"finished": 5}, None, {"failed": "oh", "traceback": "where it was"}
INTERRUPTED = {"interrupted": "worker 0 disconnected"}


def simulate(_):
    yield 1.0


class Runs:
    """Simulations without processes: tests say what their tasks send."""

    def __init__(self, inputs, retries=2, count=1, checkpoint_every=60.0):
        self.lost, self.ended, self.tasks = [], [], []
        engine = SimpleNamespace(
            traits=Traits(interruptible=False),
            publish=lambda value: value,
            submit=lambda function, simulate, value, number, *args, resources: self.tasks.append(number),
            arrived=lambda refs: [],
            delete=lambda refs: None,
        )
        router = SimpleNamespace(
            number=itertools.count().__next__, register=lambda *args: None, unregister=lambda client: self.lost
        )
        self.runs = SimulationRuns(
            Simulations(simulate, inputs, count=count, retries=retries),
            Inputs(inputs),
            engine,
            router,
            SimpleNamespace(options=SimpleNamespace(checkpoint_every=checkpoint_every), coordinator=None),
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
            client = SimpleNamespace(greeting=greeting, send=lambda header: self.ended.append(header))
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
        self.runs.repeat_lost(SimpleNamespace(lacks_samples=lambda job, stream, samples: stream in lacking))
        self.start()


outcomes = st.sampled_from([DONE, OH, DIED, INTERRUPTED, "lose"])


@given(st.integers(1, 6), st.integers(0, 2), st.integers(1, 3), st.lists(outcomes), st.randoms())
def test_every_input_runs_until_done_or_out_of_retries(inputs, retries, at_a_time, todo, random):
    runs = Runs(range(inputs), retries, at_a_time)
    failures, done, given_up = [0] * inputs, set(), set()
    todo = iter(todo)
    while not runs.runs.all_ended:
        assert len(runs.running) <= at_a_time
        which = random.randrange(len(runs.running))
        value, outcome = runs.values[which], next(todo, DONE)
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
    with pytest.warns(UserWarning, match=r"simulation 0 of input '?x+.* failed: oh; retry 1 of 1") as warned:
        runs.send(runs.running[0][0], OH)
    assert len(str(warned[0].message)) < 500
    runs.start()
    with pytest.warns(UserWarning, match="simulation 0 of input .*oh; skipped after 2 failures\nwhere it was"):
        runs.send(runs.running[0][0], OH)
    runs.start()
    assert runs.runs.all_ended


@pytest.mark.parametrize("retries", [0, 1, 3])
@pytest.mark.parametrize(("header", "cause"), [(OH, "where it was"), (DIED, None)])
def test_failures_without_any_sample_raise_with_their_traceback(retries, header, cause, clock):
    runs = Runs("ab", retries)
    for _ in range(retries + 1):
        assert runs.values == ["a"]
        runs.runs.check(0, final=True)
        runs.end(header)
    reason = "its process died" if header is None else "oh"
    clock.now += 1
    for _ in range(retries + 1):
        runs.end(OH)  # of the second one
    clock.now += REPORT_SECONDS - 1
    runs.runs.check(0)  # earlier samples may not have been reported yet
    for later, final in ((0, True), (0.1, False), (0, True)):
        clock.now += later
        with pytest.raises(
            SimulationError,
            match=rf"simulation 0 of input 'a' failed: {reason} \(failures: {retries + 1}\), and no simulation",
        ) as raised:
            runs.runs.check(0, final=final)
        if cause is None:
            assert raised.value.__cause__ is None
        else:
            assert isinstance(raised.value.__cause__, WorkerTraceback)
            assert cause in str(raised.value.__cause__)
    runs.runs.check(1, final=True)
