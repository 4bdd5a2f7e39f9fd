"""Fits that are stopped: by a callback, from another thread, by Ctrl-C or by a signal."""

import signal
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from compss_train import DistributedTrainer, Merge, SerialEngine
from compss_train.callbacks import Callback, Checkpoint
from compss_train.training.checkpoints import list_checkpoints
from compss_train.training.stopping import Stopping
from tests.helpers.callbacks import CallAt, EndCounter, InterruptAt, LookaheadEngine, StopAfter
from tests.helpers.cases import each_value, slow
from tests.helpers.models import MODES, SGD, assert_same_bits, mlp
from tests.helpers.processes import children
from tests.helpers.small_fits import X, Y, assert_alike, combined, fit, trainer_of
from tests.helpers.waiting import hang, wait_until
from tests.training.checkpoints.trees import assert_same

BLOCKS = {**MODES[3], "num_epochs": 2}


ENGINES = ["serial", "ahead", "local"]


@pytest.fixture(params=ENGINES)
def any_engine(request):
    if request.param == "local":
        return request.getfixturevalue("shared_local")
    return SerialEngine() if request.param == "serial" else LookaheadEngine()


@pytest.mark.parametrize(
    ("any_engine", "mode"),
    each_value(ENGINES, [MODES[0], BLOCKS, {"merge": Merge(every=2), "num_epochs": 5}]),
    ids=str,
    indirect=["any_engine"],
)
def test_a_callback_stops_a_fit_with_what_its_round_made(any_engine, tmp_path, mode):
    stopped = trainer_of(any_engine)
    serial = trainer_of()
    whole = trainer_of()
    resumed = trainer_of()
    ended = EndCounter()
    kept = Checkpoint(tmp_path, every=99)
    parameters = fit(stopped, StopAfter(1), ended, kept, **mode)
    assert [record["round"] for record in stopped.history] == [0, 1]
    assert stopped.stopped == "enough"
    assert (ended.ends, ended.errors) == (1, 0)
    assert_same_bits(stopped.get_parameters(), parameters)
    fit(serial, StopAfter(1), **mode)
    assert_alike(stopped, serial)
    assert kept.path == tmp_path / "round-000001"
    fit(whole, **mode)
    fit(resumed, resume=tmp_path, **mode)
    assert_alike(resumed, whole)
    for trainer in (stopped, serial):
        fit(trainer, **mode)
        assert trainer.stopped is None
    assert_alike(stopped, serial)


@pytest.mark.parametrize(
    ("any_engine", "hook"),
    each_value(ENGINES, ["fit_start", "round_start", "round_end"]),
    indirect=["any_engine"],
)
def test_it_may_stop_in_any_hook(any_engine, hook):
    rounds = int(hook != "fit_start")
    stopped = trainer_of(any_engine)
    other = trainer_of()
    parameters = fit(stopped, CallAt(hook, lambda trainer: trainer.stop("enough")))
    assert len(stopped.history) == rounds
    assert stopped.stopped == "enough"
    if rounds:
        fit(other, num_epochs=rounds)
    assert_same_bits(parameters, other.get_parameters())
    for trainer in (stopped, other):
        fit(trainer, num_epochs=1)
    assert_alike(stopped, other)


def test_a_fit_stops_whatever_the_reason_says(raises):
    """Also for an empty one; the first of several counts."""

    def stop(trainer):
        trainer.stop("")
        trainer.stop("later")
        assert trainer.stopping == ""

    stopped = trainer_of()
    fit(stopped, CallAt("round_end", stop))
    assert (len(stopped.history), stopped.stopped) == (1, "")
    with raises(TypeError, "stop(None): give the reason as a text"):
        fit(trainer_of(), CallAt("round_end", lambda trainer: trainer.stop(None)))


@pytest.mark.parametrize(
    ("merge", "stop"),
    each_value(
        ["synchronous", Merge("commutative", quorum=0), Merge("commutative", outer_optimizer=SGD)],
        ["not", "fit_start", "round_start", "round_end", "stuck at once", "stuck"],
    ),
    ids=str,
)
def test_nothing_is_left_in_an_engine(merge, stop):
    engine = LookaheadEngine()
    clock = Clock()

    def in_time(trainer):
        engine.stuck = True
        clock.now = 100.0

    actions = {
        "not": CallAt("", None),
        "stuck at once": CallAt("round_start", in_time, 0),
        "stuck": CallAt("round_start", in_time, 2),
    }
    action = actions.get(stop) or CallAt(
        stop, lambda trainer: trainer.stop("enough"), 1 if stop == "round_end" else 0
    )
    # A total shuffle cuts blocks into pieces.
    engine.traits = replace(engine.traits, shared_memory=False)
    options = combined(
        BLOCKS, merge=merge, max_time=50, validation_data=(X[:9], Y[:9]), shuffle="total"
    )
    with trainer_of(engine, clock=clock) as trainer:
        fit(trainer, action, **options)
        assert (trainer.stopped is None) == (stop == "not")
        engine.stuck = False
        states = len(engine.held)
        outer = "outer_optimizer" in str(merge)
        assert states <= 1 + 3 + outer  # the recipe, each worker's state, and the outer optimizer's
        fit(trainer, num_epochs=1)
    assert not engine.held


class Clock:
    """Time that passes when it is told to, and a bit whenever it is looked at."""

    def __init__(self, tick=1e-9):
        self.now = 0.0
        self.tick = tick

    def __call__(self):
        self.now += self.tick
        return self.now


class Passing(Callback):
    """Rounds that take so many seconds."""

    def __init__(self, clock, durations):
        self.clock = clock
        self.durations = durations

    def on_round_start(self, trainer, number):
        self.clock.now += self.durations[number]


@given(st.lists(st.integers(1, 10), min_size=1, max_size=8), st.integers(1, 40))
@example([1, 3, 1, 1], 7)  # the longest, not the last
def test_no_round_is_begun_without_time_for_it(durations, max_time):
    """A round takes as long as the longest before it, the first of which also waits for
    processes.
    """
    clock = Clock(tick=0)
    hours = [3600 * duration for duration in durations]
    trainer = trainer_of(clock=clock, workers=1, net=mlp)
    options = {"blocks": 1, "batch_size": 57}
    fit(
        trainer,
        Passing(clock, hours),
        max_time=3600 * max_time,
        num_epochs=len(durations),
        **options,
    )
    begun = 1
    trained = 1e-3
    while (
        begun < len(durations)
        and sum(durations[:begun]) + max(durations[1:begun], default=trained) <= max_time
    ):
        begun += 1
    assert len(trainer.history) == begun
    assert trainer.stopped == ("max_time" if begun < len(durations) else None)


@pytest.mark.parametrize(
    ("max_time", "time_left", "stops"),
    [(None, 100, 95), (50, 100, 50), (99, 100, 95), (None, 7200, 7140)],
)
def test_a_fit_ends_before_its_program_is_ended(max_time, time_left, stops):
    clock = Clock(tick=0)
    stopping = Stopping(max_time, clock, time_left)
    clock.now += stops
    assert stopping.reason is None
    clock.now += 0.001
    assert stopping.reason == "max_time"
    assert stopping.urgent


@pytest.mark.parametrize("at", [0, *slow(1), 3])
def test_a_round_without_time_left_is_given_up(tmp_path, at):
    engine = LookaheadEngine()
    clock = Clock()

    def in_time(trainer):
        engine.stuck = True
        clock.now = 100.0

    stopped = trainer_of(engine, clock=clock)
    short = trainer_of()
    whole = trainer_of()
    again = trainer_of()
    ended = EndCounter()
    kept = Checkpoint(tmp_path, every=99)
    fit(stopped, ended, kept, CallAt("round_start", in_time, at), max_time=50, num_epochs=5)
    assert (stopped.stopped, len(stopped.history), ended.ends, ended.errors) == (
        "max_time",
        at,
        1,
        0,
    )
    assert list(list_checkpoints(tmp_path)) == ([at - 1] if at else [])
    engine.stuck = False
    fit(whole, num_epochs=5)
    fit(again, kept, resume=True, num_epochs=5)
    assert_alike(again, whole)
    if at:
        fit(short, num_epochs=at)
    for trainer in (stopped, short):
        fit(trainer, num_epochs=1, shuffle="total")
    assert_alike(stopped, short)


@pytest.mark.parametrize("value", [0, -1, True, "1", np.nan, np.inf, timedelta(0)])
def test_max_time_is_a_time_above_zero(value):
    with pytest.raises(ValueError, match=r"max_time=.*: give a number of seconds above 0"):
        fit(trainer_of(), max_time=value)


class Hanging(nn.Module):
    """Never ends its first batch of training."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, x):
        if self.training:
            hang()
        return self.net(x)


@pytest.mark.usefixtures("forked_processes")
def test_processes_that_have_no_time_left_are_ended():
    before = children()
    with DistributedTrainer(1, engine="local", seed=0, threads=1) as trainer:
        trainer.build(Hanging(), SGD, "cross_entropy")
        trainer.evaluate(X, Y)  # starts them
        parameters = trainer.get_parameters()
        assert_same_bits(fit(trainer, max_time=0.3), parameters)
        assert trainer.stopped == "max_time"
        wait_until(lambda: not [process for process in children() if process not in before])


def test_tasks_that_have_no_time_left_are_ended_in_a_given_engine(shared_local):
    with DistributedTrainer(2, engine=shared_local, seed=0, threads=1) as trainer:
        trainer.build(Hanging(), SGD, "cross_entropy")
        trainer.evaluate(X, Y)
        parameters = trainer.get_parameters()
        state = trainer.snapshot().to_dict()["workers"]
        assert_same_bits(fit(trainer, max_time=0.3), parameters)
        assert trainer.stopped == "max_time"
        trainer.evaluate(X, Y)  # all processes hung
        assert_same(trainer.snapshot().to_dict()["workers"], state)


@pytest.mark.parametrize("progress", [True, False])
def test_after_ctrl_c_one_line_tells_the_last_complete_round(capsys, progress):
    trainer = trainer_of()
    with pytest.raises(KeyboardInterrupt):
        fit(trainer, InterruptAt(2), progress=progress)
    *_, last = lines = capsys.readouterr().err.splitlines()
    assert last == "compss_train: fit interrupted by Ctrl-C; last complete round: 1, epoch 2"
    assert sum("interrupted" in line for line in lines) == 1
    assert_same_bits(trainer.get_parameters(), fit(trainer_of(), num_epochs=2))


@contextmanager
def handler_of(handler):
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def terminate(trainer):
    signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("hook", ["fit_start", "round_start", "round_end", "fit_end"])
@pytest.mark.parametrize("engine", [SerialEngine, LookaheadEngine])
def test_sigterm_ends_the_program_with_a_checkpoint(engine, tmp_path, capsys, hook):
    stopped = trainer_of(engine())
    whole = trainer_of()
    again = trainer_of()
    ended = EndCounter()
    with handler_of(signal.SIG_DFL):
        with pytest.raises(SystemExit) as caught:
            fit(
                stopped,
                Checkpoint(tmp_path, every=99),
                ended,
                CallAt(hook, terminate, 0 if "fit" in hook else 1),
            )
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert caught.value.code == 143
    assert (ended.ends, ended.errors) == (1, 0)
    done = {"fit_start": 0, "fit_end": 3}.get(hook, 2)
    assert stopped.stopped == ("SIGTERM" if done < 3 else None)
    assert len(stopped.history) == done
    last = f"last complete round: {done - 1}, epoch {done}" if done else "no round completed"
    # Processes of earlier tests may print, too.
    lines = [line for line in capsys.readouterr().err.splitlines() if "interrupted" in line]
    assert lines == [f"compss_train: fit interrupted by SIGTERM; {last}"]
    assert list(list_checkpoints(tmp_path)) == ([done - 1] if done else [])
    fit(whole)
    fit(again, Checkpoint(tmp_path), resume=True)
    assert_alike(again, whole)


def test_sigterm_in_the_last_moment_is_not_lost():
    stopping = Stopping()
    with handler_of(signal.SIG_DFL):
        with pytest.raises(SystemExit) as caught, stopping.on_sigterm():
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert caught.value.code == 143


def test_a_handler_of_the_programs_own_is_left_alone():
    told = []

    def own(number, frame):
        told.append(number)

    for handler in (own, signal.SIG_IGN):
        trainer = trainer_of()
        with handler_of(handler):
            fit(trainer, CallAt("round_end", terminate))
            assert signal.getsignal(signal.SIGTERM) is handler
        assert (trainer.stopped, len(trainer.history)) == (None, 3)
    assert told == [signal.SIGTERM]
