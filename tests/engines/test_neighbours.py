"""An engine that the caller made is the caller's: what fails ends with what it has made, and
nothing else does.
"""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from compss_train import (
    BufferSpec,
    DistributedTrainer,
    DivergedError,
    LocalEngine,
    SerialEngine,
    Simulations,
)
from compss_train.engines import CompssEngine, RayEngine, Resources, calls
from compss_train.exceptions import TaskCancelledError, WorkerLostError
from tests.engines import tasks
from tests.engines.test_conformance import fetch, runs_tasks_side_by_side
from tests.engines.test_local import stored
from tests.helpers.callbacks import CallAt
from tests.helpers.models import SGD, assert_same_bits, awkward_net, classification, mlp
from tests.helpers.processes import is_running
from tests.helpers.small_fits import fit, trainer_of
from tests.helpers.waiting import LIMIT, text_of, wait_until
from tests.simulation.engine import SimulatedEngine
from tests.simulation.laws import check_engine
from tests.trainer.test_faults import KillOnce

MORE_ENGINES = ["simulated"]
X, Y = classification()


class Broken(nn.Module):
    """A network that fails in training or, as the case may be, in evaluation."""

    def __init__(self, how, training=True, place=None):
        super().__init__()
        self.net = mlp()
        self.how = how
        self.when = training
        self.place = place

    def forward(self, x):
        if self.training == self.when:
            {"raise": tasks.fail, "die": tasks.die, "exit": tasks.leave, "hang": self.hang}[
                self.how
            ]("broken")
        return self.net(x)

    def hang(self, _):
        (self.place / "hangs").touch()
        tasks.wait_for(self.place / "never", None)


@contextmanager
def ctrl_c(flag):
    """Ctrl-C as soon as there is a file."""

    def send():
        wait_until(flag.exists)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def trained(engine, net, *callbacks, data=(X, Y), **options):
    with trainer_of(engine, 2, net=lambda: net, optimizer=SGD) as trainer:
        fit(trainer, *callbacks, data=data, **options)


def raising(error):
    def call(_):
        raise error

    return call


def interrupted(engine, place, training):
    with (
        ctrl_c(place / "hangs"),
        trainer_of(engine, 2, net=lambda: Broken("hang", training, place)) as trainer,
    ):
        fit(trainer) if training else trainer.predict(X)


def after_a_good_fit(engine, error):
    with trainer_of(engine, 2, net=mlp) as trainer:
        fit(trainer)
        raise error


def online(engine, net, *callbacks):
    options = {
        "buffer": BufferSpec("FIFO", 16),
        "batch_size": 5,
        "callbacks": callbacks,
        "progress": False,
    }
    trainer_of(engine, 1, net=lambda: net).fit_online(Simulations(_rows, [(X, Y)]), **options)


def _rows(data):
    yield from zip(*data, strict=True)


NANS = np.where(np.arange(60)[:, None] == 31, np.nan, X).astype(np.float32)
HOOKS = ("fit_start", "round_start", "round_end", "fit_end")
FAILURES = {
    "nan": (DivergedError, lambda e, p: trained(e, mlp(), data=(NANS, Y))),
    "nan, commutative": (
        DivergedError,
        lambda e, p: trained(e, mlp(), data=(NANS, Y), merge="commutative"),
    ),
    "labels": (IndexError, lambda e, p: trained(e, mlp(), data=(X, Y + 1))),
    "shapes": (RuntimeError, lambda e, p: trained(e, mlp(), data=(X[:, 1:], Y))),
    "model": (KeyError, lambda e, p: trained(e, Broken("raise"))),
    "model, commutative": (KeyError, lambda e, p: trained(e, Broken("raise"), merge="commutative")),
    "model, server": (KeyError, lambda e, p: trained(e, Broken("raise"), merge="parameter_server")),
    "model, validation": (
        KeyError,
        lambda e, p: trained(e, Broken("raise", False), validation_data=(X, Y)),
    ),
    "exit": (RuntimeError, lambda e, p: trained(e, Broken("exit"))),
    "process": (WorkerLostError, lambda e, p: trained(e, Broken("die"))),
    **{
        f"callback, {at}": (LookupError, lambda e, p, at=at: fails_in(e, at, LookupError()))
        for at in HOOKS
    },
    **{
        f"ctrl-c, {at}": (
            KeyboardInterrupt,
            lambda e, p, at=at: fails_in(e, at, KeyboardInterrupt()),
        )
        for at in HOOKS
    },
    "ctrl-c, task": (KeyboardInterrupt, lambda e, p: interrupted(e, p, training=True)),
    "evaluate": (
        KeyError,
        lambda e, p: trainer_of(e, 2, net=lambda: Broken("raise", False)).evaluate(X, Y),
    ),
    "predict": (
        KeyError,
        lambda e, p: trainer_of(e, 2, net=lambda: Broken("raise", False)).predict(X),
    ),
    "predict, process": (
        WorkerLostError,
        lambda e, p: trainer_of(e, 2, net=lambda: Broken("die", False)).predict(X),
    ),
    "predict, ctrl-c": (KeyboardInterrupt, lambda e, p: interrupted(e, p, training=False)),
    "block": (LookupError, lambda e, p: after_a_good_fit(e, LookupError())),
    "block, ctrl-c": (KeyboardInterrupt, lambda e, p: after_a_good_fit(e, KeyboardInterrupt())),
    "online": (Exception, lambda e, p: online(e, Broken("raise"))),
    "online, callback": (
        Exception,
        lambda e, p: online(e, mlp(), CallAt("round_end", raising(LookupError()))),
    ),
}
ON_RAY = ("model", "callback, round_end", "ctrl-c, task", "block")
PROCESSES = {"process", "predict, process", "ctrl-c, task", "predict, ctrl-c"}


def fails_in(engine, hook, error):
    trained(engine, mlp(), CallAt(hook, raising(error)))


@cache
def alone():
    return fit(trainer_of("serial", 2))


def with_processes(engine):
    """Whether processes may die, and Ctrl-C comes while this one waits for them."""
    return runs_tasks_side_by_side(engine) and not isinstance(engine, CompssEngine)


@pytest.mark.parametrize("how", FAILURES)
def test_a_fit_that_fails_leaves_the_engine_to_its_caller(
    engine, tmp_path, how, request, monkeypatch
):
    if (
        isinstance(engine, RayEngine)
        and how not in ON_RAY
        and not request.config.getoption("--slow")
    ):
        pytest.skip("takes seconds: --slow runs it")
    if how in PROCESSES and not with_processes(engine):
        pytest.skip("tasks run in this process, or with the lock of the interpreter")
    monkeypatch.setattr(calls, "MAX_RUNS", 2)
    expected, fail = FAILURES[how]
    with pytest.raises(expected):
        fail(engine, tmp_path)
    trainer = trainer_of(engine, 2)
    assert_same_bits(fit(trainer), alone())
    assert trainer.predict(X).shape == (60, 3)


@pytest.mark.parametrize("how", ["fit", "second fit", "block"])
def test_a_fit_that_fails_frees_what_it_has_stored(shared_local, how):
    """Although its exception, with all frames, is still there."""
    before = stored(shared_local)
    (x, y) = classification(2000, 64)
    with (  # noqa: PT012
        pytest.raises(LookupError) as caught,
        trainer_of(shared_local, 2, net=lambda: mlp(64, 3)) as trainer,
    ):
        if how != "fit":
            fit(trainer, data=(x, y), num_epochs=1, batch_size=500)
        if how == "block":
            raise LookupError
        fit(
            trainer,
            CallAt("round_end", raising(LookupError()), 1),
            data=(x, y),
            num_epochs=9,
            batch_size=500,
        )
    wait_until(lambda: not stored(shared_local) - before)
    assert caught.value is not None


class Held:
    """A transform that notes each batch, and waits at the first until a fit beside it has
    failed.
    """

    def __init__(self, place):
        self.place = place

    def __call__(self, x):
        tasks.note(os.getpid(), self.place / "batches")
        return tasks.wait_for(self.place / "failed", x)


@pytest.mark.parametrize("how", ["model", "nan", "callback"])
def test_a_fit_that_fails_does_not_disturb_one_beside_it(engine, tmp_path, how):
    if isinstance(engine, SimulatedEngine | CompssEngine):
        pytest.skip("belongs to one thread")
    running = tmp_path / "batches"
    failed = tmp_path / "failed"
    apart = tmp_path / "apart"
    apart.mkdir()

    callbacks = [CallAt("fit_start", lambda _: text_of(running))]
    callbacks += [CallAt("round_end", raising(LookupError()))] if how == "callback" else []

    def lose(trainer):
        try:
            fit(trainer, *callbacks, data=(NANS if how == "nan" else X, Y))
        finally:
            failed.touch()

    def of_winner(place):
        if runs_tasks_side_by_side(engine):  # else a task that waits would keep others from running
            return trainer_of(engine, 1, transform=Held(place)), []
        return trainer_of(engine, 1), [CallAt("round_end", lambda _: Held(place)(None))]

    trainer = trainer_of(
        engine, 2, net=lambda: Broken("raise") if how == "model" else mlp(), optimizer=SGD
    )
    winners = of_winner(tmp_path)
    again = of_winner(apart)
    with ThreadPoolExecutor(2) as threads:
        loser = threads.submit(lose, trainer)
        winner = threads.submit(fit, winners[0], *winners[1])
        assert isinstance(loser.exception(LIMIT), LookupError | DivergedError)
        ours = winner.result(LIMIT)
    (apart / "failed").touch()
    assert_same_bits(ours, fit(again[0], *again[1]))
    assert_same_bits(ours, fit(trainer_of("serial", 1)))
    assert len(running.read_text().split()) == len((apart / "batches").read_text().split())


class Meeting(nn.Module):
    """A network with Dropout, whose first batch lets the other fit train meanwhile, if that can
    be.
    """

    barrier: threading.Barrier

    def __init__(self):
        super().__init__()
        self.net = awkward_net()

    def forward(self, x):
        with suppress(threading.BrokenBarrierError):
            self.barrier.wait(0.2)
        return self.net(x)


@pytest.mark.parametrize("shared", [True, False])
def test_serial_fits_in_threads_draw_the_numbers_of_fits_alone(shared, monkeypatch):
    """Also on two engines: random numbers and the number of threads are those of the process."""
    monkeypatch.setattr(Meeting, "barrier", threading.Barrier(2), raising=False)
    first = SerialEngine()
    engines = [first, first if shared else SerialEngine(), "serial", "serial"]
    trainers = [
        trainer_of(engine, 2, net=Meeting, threads=n % 2 + 1) for n, engine in enumerate(engines)
    ]
    with ThreadPoolExecutor(2) as threads:
        results = [*threads.map(lambda trainer: fit(trainer, num_epochs=1), trainers[:2])]
    assert Meeting.barrier.broken
    for result, alone in zip(results, trainers[2:], strict=True):
        assert_same_bits(result, fit(alone, num_epochs=1))


def test_a_task_of_the_serial_engine_may_run_others():
    engine = SerialEngine()
    inner = SerialEngine()
    assert (
        fetch(engine, engine.submit(lambda: fetch(inner, inner.submit(tasks.add, 1, 2)) + 1)) == 4
    )


def test_a_hanging_task_is_ended_though_a_fit_beside_it_has_ended(engine, tmp_path):
    if not with_processes(engine):
        pytest.skip("tasks are not watched")
    stopped = tmp_path / "stopped"

    trainer = DistributedTrainer(1, engine=engine, seed=0, threads=1, worker_timeout=3.0)
    trainer.build(
        awkward_net(), SGD, "cross_entropy", transform=KillOnce(stopped, 2, signal.SIGSTOP)
    )
    with ThreadPoolExecutor(1) as thread:
        result = thread.submit(fit, trainer, num_epochs=1)
        wait_until(stopped.exists)
        fit(trainer_of(engine, 1), num_epochs=1)
        assert_same_bits(
            result.result(LIMIT), fit(trainer_of("serial", 1, optimizer=SGD), num_epochs=1)
        )


def test_a_scope_that_fails_ends_its_own_tasks_only(engine, tmp_path):
    if not with_processes(engine):
        pytest.skip("nothing runs meanwhile")
    gate = tmp_path / "gate"
    order = tmp_path / "order"
    never = tmp_path / "never"
    beside = engine.submit(tasks.note_and_wait, order, gate)
    pid_beside = int(text_of(order))
    with pytest.raises(KeyError), engine.scope():  # noqa: PT012
        published = engine.publish(np.ones(100_000))
        running = engine.submit(tasks.note_and_wait, tmp_path / "running", never)
        queued = [engine.submit(tasks.wait_for, never, n) for n in range(8)]
        after = engine.submit(tasks.total, [published, running])
        with engine.scope():
            inner = engine.submit(tasks.add, 1, priority=True)
            target = engine.publish(1)
        updated = engine.commute(target, tasks.plus, running)
        pid = int(text_of(tmp_path / "running"))
        raise KeyError
    assert not is_running(pid)
    for ref in (published, running, *queued, after, updated):
        with pytest.raises(TaskCancelledError, match="the fit that made this value has failed"):
            engine.fetch([ref])
    with pytest.raises(TaskCancelledError):
        engine.fetch([engine.submit(tasks.add, running)])
    assert fetch(engine, inner) == 1
    gate.touch()
    assert fetch(engine, beside) == pid_beside
    assert int(order.read_text()) == pid_beside  # it has run once
    assert engine.fetch([engine.submit(tasks.add, n) for n in range(8)]) == [*range(8)]


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 9), st.booleans()), max_size=25
    )
)
def test_cancelled_tasks_leave_the_values_of_others_and_nothing_else(steps):
    """A random graph: each task adds two earlier values; some are updates, some belong to the scope
    that fails.
    """
    engine = SimulatedEngine(2)
    kept = [(engine.publish(1), 1)]
    lost = []
    with suppress(KeyError), ThreadPoolExecutor(1) as outside, engine.scope():
        lost.append((engine.publish(2), 2))
        for within, one, other, update in steps:
            # Tasks outside depend on values outside only.
            known = kept + lost if within else kept
            (left, a) = known[one % len(known)]
            (right, b) = known[other % len(known)]
            if not within:  # a scope is that of a thread
                made = outside.submit(engine.submit, tasks.add, left, right).result()
            elif update:
                made = engine.commute(engine.publish(a), tasks.plus, right)
            else:
                made = engine.submit(tasks.add, left, right)
            (lost if within else kept).append((made, a + b))
        raise KeyError
    assert engine.fetch([ref for ref, _ in kept]) == [value for _, value in kept]
    for ref, _ in lost:
        with pytest.raises(TaskCancelledError):
            engine.fetch([ref])
    left = right = made = known = ref = None
    kept.clear()
    engine.drain()
    check_engine(engine)


@pytest.mark.usefixtures("forked_processes")
def test_what_several_threads_have_reserved_runs_at_the_same_time():
    """Two online fits, of which each has what it needs, or they would wait for each other."""
    with LocalEngine(1) as engine:

        def reserve(number):
            with engine.scope():
                engine.reserve([Resources()] * 2)
                engine.reserve([Resources()] * 3)
                barrier.wait(LIMIT)
                return engine.processes

        barrier = threading.Barrier(2)
        with ThreadPoolExecutor(2) as threads:
            assert [*threads.map(reserve, range(2))] == [6, 6]
        with engine.scope():
            engine.reserve([Resources()] * 5)
        assert engine.processes == 6


def test_what_cannot_be_cancelled_has_run_when_a_scope_that_fails_ends(engine, tmp_path):
    if not isinstance(engine, CompssEngine):
        pytest.skip("tasks are cancelled, or have run by then")
    notes = tmp_path / "notes"
    with pytest.raises(KeyError), engine.scope():  # noqa: PT012
        refs = [engine.submit(tasks.note, n, notes) for n in range(6)]
        raise KeyError
    assert sorted(notes.read_text().split()) == [*map(str, range(6))]
    with pytest.raises(TaskCancelledError):
        engine.fetch(refs)


def test_compss_serves_the_thread_that_made_the_engine(engine):
    if not isinstance(engine, CompssEngine):
        pytest.skip("others serve several threads")
    ref = engine.publish(1)
    numbers = count()

    def refused(call):
        with ThreadPoolExecutor(1, f"trial{next(numbers)}") as thread:
            error = thread.submit(call).exception(60)
        assert isinstance(error, RuntimeError)
        assert "the compss engine belongs to the thread 'MainThread', and 'trial" in str(error)

    refused(lambda: engine.publish(1))
    refused(lambda: engine.submit(tasks.add, 1))
    refused(lambda: engine.fetch([ref]))
    refused(engine.shutdown)
    refused(CompssEngine)
    refused(lambda: fit(trainer_of(engine, 2)))
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(
            lambda: (engine.slots(Resources()) > 0, engine.trained_samples())
        ).result() == (
            True,
            None,
        )
    assert fetch(engine, ref) == 1
