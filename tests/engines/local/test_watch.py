"""Tests of the watch: silent tasks are warned of, and ended where there is a timeout; others are
left alone.
"""

from concurrent.futures import Future

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train import WorkerLostError
from compss_train.engines import base, calls, liveness, local, watch
from compss_train.engines.base import Scope
from compss_train.engines.task_graph import Task
from compss_train.engines.watch import CHECK_SECONDS, Watch, Watching
from tests.engines import tasks
from tests.engines.test_conformance import new_heartbeat
from tests.helpers.waiting import LIMIT


class Process:
    """A process that runs nothing."""

    pid = 1

    def __init__(self, folder):
        self.heartbeat = new_heartbeat(folder)
        self.ready = Future()
        self.ready.set_result(1)
        self.killed = False
        self.asked = 0
        self.written = ""

    def kill(self):
        self.killed = True

    def ask_for_stack(self):
        self.asked += 1

    def stack(self):
        return self.written


class Watched:
    """A watch of one task, and its clock."""

    def __init__(self, folder, timeout=None):
        self.now = 0.0
        self.watch = Watch(lambda: self.now)
        self.process = Process(folder)
        self.task = self.start(self.process, Watching(timeout=timeout))

    def start(self, process, watching):
        task = Task(number=0, function=len, args=(), outputs=[], scope=Scope(watching))
        self.watch.started(task, process)
        return task

    def pass_(self, seconds):
        for _ in range(round(seconds / CHECK_SECONDS)):
            self.now += CHECK_SECONDS
            self.watch.check()

    def beat(self):
        self.process.heartbeat.report(doing="round 1 on worker 0")
        self.pass_(CHECK_SECONDS)


@pytest.fixture
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("beats")


@given(
    st.lists(st.integers(min_value=1, max_value=400), max_size=4),
    st.integers(min_value=1, max_value=2000),
)
def test_warned_once_after_ten_times_the_longest_silence(tmp_path_factory, gaps, last):
    watched = Watched(tmp_path_factory.mktemp("beats"))
    said = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "say", said.append)
        longest = 0
        for gap in gaps:
            if gap >= max(30, 10 * longest):
                gap = 29  # shorter than what is warned of
            longest = max(longest, gap)
            watched.pass_(gap)
            watched.beat()
        assert not said
        watched.pass_(last)
    limit = max(30, 10 * longest)
    if last < limit:
        assert not said
    elif last > limit + 10 * CHECK_SECONDS + 1:
        (warning,) = said
        assert "has reported no batch for " in warning
        assert "process 1" in warning
        assert "worker_timeout=SECONDS" in warning


def test_a_task_that_continues_after_a_warning_is_reported(folder, capsys):
    watched = Watched(folder)
    watched.beat()
    watched.pass_(500)
    watched.beat()
    err = capsys.readouterr().err
    assert "round 1 on worker 0 continues after 500 s" in err
    assert err.count("has reported no batch") == 1
    watched.pass_(31)
    assert "has reported no batch for 30 s" in capsys.readouterr().err


def test_a_silent_task_is_ended_after_the_timeout_only(folder, capsys):
    watched = Watched(folder, timeout=5)
    watched.pass_(4.5)
    watched.beat()
    watched.pass_(4.75)
    assert not watched.process.killed
    watched.pass_(0.5)
    assert watched.process.killed
    assert watched.task.timed_out
    assert "worker_timeout=5 ends its process 1" in capsys.readouterr().err


def test_64_silent_processes_delay_no_check(tmp_path, monkeypatch, capsys):
    """Each is asked for its stack, which is read at later checks, or counts as stopped half a
    second later.
    """
    watched = Watched(tmp_path)
    watched.process.ready = Future()  # it has not started yet, and is not warned of
    processes = [Process(tmp_path) for _ in range(64)]
    for process in processes:
        watched.start(process, Watching())
    monkeypatch.setattr(
        watch.time, "sleep", lambda seconds: pytest.fail("the scheduler's thread waits")
    )
    watched.pass_(29.75)
    assert not any(process.asked for process in processes)
    watched.pass_(0.25)
    assert [process.asked for process in processes] == [1] * 64
    for process in processes[:32]:
        process.written = "File x.py in hang\n"
    watched.pass_(0.25)
    first = capsys.readouterr().err
    assert first.count(". Its stack:\nFile x.py in hang\n") == 32
    watched.pass_(0.25)
    assert capsys.readouterr().err.count("which is stopped (kill -CONT 1 continues it)") == 32
    watched.pass_(100)
    assert capsys.readouterr().err == ""
    assert [process.asked for process in processes] == [1] * 64


def test_a_task_that_goes_on_before_its_stack_is_there_is_not_warned_of(folder, capsys):
    watched = Watched(folder)
    watched.pass_(30)
    assert watched.process.asked == 1
    watched.beat()
    watched.process.written = "late"
    watched.pass_(29)
    assert capsys.readouterr().err == ""


@given(st.lists(st.sampled_from([None, 2.0, 3.0, 5.0, 8.0]), min_size=1, max_size=6), st.data())
def test_each_task_ends_by_the_timeout_of_its_own_fit(tmp_path_factory, timeouts, data):
    """Whichever fits begin and end beside it."""
    folder = tmp_path_factory.mktemp("beats")
    watched = Watched(folder, timeout=1000)
    fits = [Watching(timeout=timeout) for timeout in timeouts]
    processes = [Process(folder) for _ in fits]
    runs = [watched.start(process, fit) for process, fit in zip(processes, fits, strict=True)]
    gone = data.draw(st.sets(st.sampled_from(range(len(runs)))))
    for seconds in range(10):
        for timeout, process, number in zip(timeouts, processes, range(len(runs)), strict=True):
            assert process.killed == (
                timeout is not None and seconds >= timeout and number not in gone
            )
        if seconds == 1:
            for number in gone:
                watched.watch.ended(runs[number])
        watched.pass_(1)


def test_a_hanging_task_is_shown_with_its_stack_and_ended(
    shared_local, tmp_path, monkeypatch, capsys
):
    every = range(shared_local.processes)  # all processes import the module of the tasks before
    shared_local.fetch(
        [shared_local.submit(tasks.meet, tmp_path, number, len(every)) for number in every]
    )
    monkeypatch.setattr(liveness, "WARN_SECONDS", 0.3)
    monkeypatch.setattr(liveness, "WARN_FACTOR", 0)
    monkeypatch.setattr(calls, "MAX_RUNS", 1)
    monkeypatch.setattr(watch, "STACK_SECONDS", LIMIT)
    own = Watching()
    say = watch.say
    monkeypatch.setattr(base, "Watching", lambda timeout: own)

    def say_and_end(message):
        say(message)
        own.timeout = 0.1

    monkeypatch.setattr(watch, "say", say_and_end)
    with (
        shared_local.scope(watched=True),
        pytest.raises(WorkerLostError, match="reported no batch for worker_timeout"),
    ):
        shared_local.fetch([shared_local.submit(tasks.wait_for, tmp_path / "never", 0)])
    assert shared_local.fetch([shared_local.submit(tasks.add, 1)]) == [1]
    err = capsys.readouterr().err
    assert "task 'wait_for' has reported no batch for" in err
    assert "which is stopped" not in err
    assert "in wait_for" in err


@pytest.mark.parametrize("timeout", [None, 20.0])
@pytest.mark.parametrize("gpu", [False, True])
def test_a_child_runs_functions_and_is_replaced(timeout, gpu, forked_processes, tmp_path):
    ones = np.ones(50_000)
    assert local.run_in_child(tasks.total, timeout, gpu, [ones, ones]).sum() == 100_000
    assert local.run_in_child(tasks.die_once, timeout, gpu, tmp_path / "flag", 7) == 7
    with pytest.raises(KeyError, match="broken"):
        local.run_in_child(tasks.fail, timeout, gpu, "broken")
    local.kept_child.cache_clear()


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), ValueError("closed")])
def test_what_cannot_be_printed_ends_nothing(folder, monkeypatch, fault):
    """As where stderr goes to a file on a full disk: the thread that watches goes on."""

    class Broken:
        def write(self, text):
            raise fault

    watched = Watched(folder, timeout=5)
    monkeypatch.setattr("sys.stderr", Broken())
    watched.pass_(31)
    assert watched.process.killed
