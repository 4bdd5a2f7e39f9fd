"""Tests of the local engine alone: processes, shared memory, faults, order."""

import errno
import gc
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import psutil
import pytest
from loky.backend.process import LokyProcess

from compss_train import LocalEngine, WorkerLostError
from compss_train._utils import files
from compss_train.engines import Resources, calls, codec, liveness
from compss_train.engines.local import starter
from compss_train.engines.local.scheduler import Scheduler
from compss_train.engines.local.store import store
from compss_train.engines.nodes import ONE_CPU
from compss_train.exceptions import BadFileError, EngineClosedError
from tests.engines import tasks
from tests.helpers.processes import ROOT, children, is_running, leftovers
from tests.helpers.shared_engine import fork_processes
from tests.helpers.waiting import LIMIT, settled, text_of, wait_until


@pytest.fixture(scope="module")
def local():
    """An engine of two processes, which faults do no harm."""
    with pytest.MonkeyPatch.context() as patch:
        fork_processes(patch)
        engine = LocalEngine(processes=2)
    with engine:
        yield engine


def stored(engine: LocalEngine) -> set[str]:
    """Return the names of its files, without those of heartbeats, which processes write when they
    start.
    """
    names = {name for folder in engine.folders for name in os.listdir(folder)}
    return {name for name in names if "heartbeat" not in name}


def test_large_values_are_files_and_small_ones_inline(local):
    before = stored(local)
    big = local.publish(np.ones(100_000))
    local.publish(np.ones(3))
    assert len(stored(local) - before) == 1
    refs = [local.submit(tasks.total, [big, big]) for _ in range(4)]
    local.fetch(refs)
    assert len(stored(local) - before) == 5
    del big, refs
    wait_until(lambda: not stored(local) - before)


def test_a_failure_does_not_wait_for_other_inputs(local, tmp_path):
    before = stored(local)
    gate = tmp_path / "gate"
    slow = local.submit(tasks.wait_for, gate, np.ones(100_000))
    failed = local.submit(tasks.fail, "mine")
    both = [local.submit(tasks.total, inputs) for inputs in ([slow, failed], [failed, slow, slow])]
    for ref in (*both, local.submit(tasks.total, [slow, *both])):
        with pytest.raises(KeyError, match="mine"):
            local.fetch([ref])
    gate.touch()
    assert len(local.fetch([slow])[0]) == 100_000
    del slow, failed, both, ref
    gc.collect()  # an exception has the frame of ``fetch``, which has the reference
    wait_until(lambda: not stored(local) - before)


def test_a_failed_update_leaves_the_newest_value(local):
    before = stored(local)
    target = local.publish(np.zeros(10_000))
    made = [local.commute(target, tasks.plus, 2)]
    local.fetch(made)
    made += [
        local.commute(target, tasks.plus, local.submit(tasks.fail, "no value")) for _ in range(2)
    ]
    for ref in made[1:]:
        with pytest.raises(KeyError, match="no value"):
            local.fetch([ref])
    del made, ref
    gc.collect()
    assert local.peek(target).tolist() == [2.0] * 10_000
    del target
    wait_until(lambda: not stored(local) - before)


def test_a_memory_mapped_array_is_sent_as_a_path(local, tmp_path):
    np.save(tmp_path / "x.npy", np.arange(200_000).reshape(1000, 200))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    before = stored(local)
    part = local.publish(mapped[100:110])
    assert stored(local) == before
    np.testing.assert_array_equal(
        local.fetch([local.submit(tasks.total, [part])])[0], mapped[100:110]
    )
    changed = np.load(tmp_path / "x.npy", mmap_mode="c")
    changed += 5  # in this process alone
    np.testing.assert_array_equal(local.fetch([local.publish(changed)])[0], mapped + 5)
    os.truncate(tmp_path / "x.npy", 4096)
    with pytest.raises(
        BadFileError, match=r"x\.npy has been cut since it was memory-mapped: it has 4096 bytes"
    ):
        local.fetch([local.submit(tasks.total, [part])])


def test_a_thousand_values_in_one_task_need_no_thousand_descriptors(local):
    refs = [local.publish(np.ones(5000)) for _ in range(1500)]
    assert local.fetch([local.submit(tasks.total, refs)])[0].sum() == 1500 * 5000


def test_a_full_shared_memory_falls_back_to_the_temporary_folder(tmp_path, monkeypatch):
    full = tmp_path / "full"
    roomy = tmp_path / "roomy"
    full.mkdir()
    roomy.mkdir()
    write = os.write

    def no_room(descriptor, data):
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(full)):
            raise OSError(errno.ENOSPC, "no space left")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", no_room)
    stored = store(np.ones(10_000), "value", [str(full), str(roomy)])
    assert stored.path == str(roomy / "value")
    assert stored.load().sum() == 10_000
    assert not os.listdir(full)
    with pytest.raises(OSError, match="no space left"):
        store(np.ones(10_000), "value", [str(full), str(full)])


@pytest.mark.parametrize(("stream", "word"), [("stdout", "output"), ("stderr", "error")])
def test_a_program_without_a_standard_stream_is_told(monkeypatch, stream, word):
    monkeypatch.setattr(sys, stream, None)
    with pytest.raises(RuntimeError, match=f"without standard {word}, which .* >/dev/null 2>&1"):
        LocalEngine(1)


def test_tasks_with_priority_overtake_waiting_ones(local, tmp_path):
    order = tmp_path / "order"
    gate = tmp_path / "gate"
    other = tmp_path / "other"
    blockers = [local.submit(tasks.wait_for, held, 0) for held in (gate, other)]
    late = [local.submit(tasks.note, n, order) for n in range(3)]
    urgent = local.submit(tasks.note, "urgent", order, priority=True)
    gate.touch()  # one process is held until the end, so that the other one takes task after task
    local.fetch([*late, urgent])
    other.touch()
    local.fetch(blockers)
    assert order.read_text().splitlines() == ["urgent", "0", "1", "2"]


def test_a_task_takes_as_many_cpus_as_it_asks_for(local, tmp_path):
    gate = tmp_path / "gate"
    order = tmp_path / "order"
    blocker = local.submit(tasks.wait_for, gate, 0)
    wide = local.submit(tasks.note, "wide", order, resources=Resources(cpus=2))
    narrow = local.submit(tasks.note, "narrow", order)
    gate.touch()
    local.fetch([blocker, wide, narrow])
    assert order.read_text().splitlines() == ["wide", "narrow"]
    with pytest.raises(ValueError, match="asks for 3 CPUs and this engine has 2"):
        local.submit(tasks.add, 1, resources=Resources(cpus=3))


def test_only_the_task_of_a_killed_process_runs_again(local, tmp_path, capsys):
    before = local.pids
    runs = tmp_path / "runs"
    beside = local.submit(tasks.note_and_wait, runs, tmp_path / "gate")
    assert int(text_of(runs)) in before
    refs = [local.submit(tasks.die_once, tmp_path / "flag", np.ones(10_000))]
    refs += [local.submit(tasks.add, n, n) for n in range(10)]
    values = local.fetch(refs)
    assert values[0].sum() == 10_000
    assert values[1:] == [2 * n for n in range(10)]
    message = "compss_train: a worker process died (SIGKILL(-9)); its task 'die_once' runs again\n"
    assert capsys.readouterr().err == message
    (tmp_path / "gate").touch()
    survivor = local.fetch([beside])[0]
    assert runs.read_text().split() == [str(survivor)]
    assert set(before) & set(local.pids) == {survivor}


def test_a_process_ended_by_a_signal_without_a_name_is_replaced(local, tmp_path, capsys):
    number = signal.SIGRTMIN + 1
    assert local.fetch([local.submit(tasks.die_once, tmp_path / "flag", 1, number)]) == [1]
    assert f"a worker process died (exit code {-number})" in capsys.readouterr().err


def test_a_task_whose_gpu_breaks_runs_again_in_a_new_process(local, tmp_path, capsys):
    broken = local.submit(tasks.break_gpu, tmp_path / "runs", 1, "unspecified launch failure")
    (last,) = local.fetch([broken])
    first, second = (tmp_path / "runs").read_text().split()
    assert last == int(second) != int(first)
    message = (
        "a worker process died (CUDA error: unspecified launch failure); its task "
        "'break_gpu' runs again"
    )
    assert capsys.readouterr().err == f"compss_train: {message}\n"


@pytest.mark.parametrize(
    ("error", "runs"), [("unknown error", calls.MAX_RUNS), ("device-side assert triggered", 1)]
)
def test_a_gpu_that_breaks_each_time_ends_the_task_and_each_process(local, tmp_path, error, runs):
    with pytest.raises(RuntimeError, match=error) as caught:
        local.fetch([local.submit(tasks.break_gpu, tmp_path / "runs", 99, error)])
    assert "look at the GPU" in caught.value.__notes__[0]
    broken = {int(pid) for pid in (tmp_path / "runs").read_text().split()}
    assert len(broken) == runs
    assert local.fetch([local.submit(tasks.add, 1, 2)]) == [3]
    assert not broken & set(local.pids)


@pytest.mark.parametrize("victims", ["one", "all"])
def test_processes_killed_while_idle_are_replaced(shared_local, tmp_path, victims):
    processes = shared_local.processes
    shared_local.fetch(_meeting(shared_local, tmp_path / "before", processes))
    killed = shared_local.pids[: 1 if victims == "one" else processes]
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(is_running, killed)))
    assert shared_local.fetch(_meeting(shared_local, tmp_path / "after", processes)) == [
        *range(processes)
    ]
    assert not set(killed) & set(shared_local.pids)


def test_a_fork_server_that_fails_is_named_with_its_exit_code(tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("import os; os._exit(7)")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(calls, "MAX_RUNS", 1)
    with LocalEngine(1, preload=["broken_module"]) as engine:
        ref = engine.submit(abs, -1)
        with pytest.raises(WorkerLostError, match="exit code 7 before it began: its error is abo"):
            engine.fetch([ref])


def test_processes_have_the_modules_that_the_program_has_loaded_again(
    tmp_path, monkeypatch, capsys
):
    file = tmp_path / "reloaded_module.py"
    file.write_text("def answer(): return 42")
    monkeypatch.syspath_prepend(tmp_path)
    with LocalEngine(2) as engine:
        reloaded_module = importlib.import_module("reloaded_module")
        for answer in (42, 42, "another"):
            if answer == "another":
                file.write_text("def answer(): return 'another'")
                importlib.reload(reloaded_module)
            before = engine.pids
            with engine.scope():
                refs = [engine.submit(reloaded_module.answer) for _ in range(4)]
                assert engine.fetch(refs) == [answer] * 4
            assert (engine.pids == before) == (answer == 42)
    del sys.modules["reloaded_module"]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("changes", [False, True])
def test_a_module_that_has_changed_when_a_process_is_replaced_is_named(
    tmp_path, monkeypatch, capsys, changes
):
    file = tmp_path / "edited_module.py"
    file.write_text("def answer(): return 42")
    monkeypatch.syspath_prepend(tmp_path)
    edited_module = importlib.import_module("edited_module")
    with LocalEngine(1) as engine:
        assert engine.fetch([engine.submit(edited_module.answer)]) == [42]
        if changes:
            file.write_text("def answer(): return 'another'")
        (pid,) = engine.pids
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_running(pid))
        engine.fetch([engine.submit(abs, -1)])
    del sys.modules["edited_module"]
    said = "a new process imports edited_module as the files are now" in capsys.readouterr().err
    assert said == changes


def test_a_program_whose_folder_was_removed_is_told(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(FileNotFoundError) as caught:
        LocalEngine(1)
    monkeypatch.chdir(tmp_path)
    assert "if it was removed, change to another one" in caught.value.__notes__[0]


def test_a_value_that_another_program_removed_is_an_error_that_names_one(tmp_path):
    stored = store(np.ones(10_000), "value", [str(tmp_path)])
    stored.discard()
    with pytest.raises(FileNotFoundError) as caught:
        stored.load()
    assert "systemd-logind does so" in caught.value.__notes__[0]


def test_a_fork_server_killed_at_its_start_or_later_is_replaced(tmp_path):
    """Its processes end with it, and their tasks run again."""

    def imported():  # sent by value: nothing of this module is imported for it
        import sys

        return [name for name in sys.modules if name.startswith("compss_train.")]

    runs = tmp_path / "runs"
    others = children()

    def kill_server():
        mine = [
            each
            for each in psutil.Process().children()
            if each in children() and each not in others
        ]
        (server,) = (each for each in mine if is_running(each.pid))
        server.kill()

    with LocalEngine(processes=2, preload=["compss_train.worker"]) as engine:
        kill_server()
        (names,) = engine.fetch([engine.submit(imported)])
        running = [engine.submit(tasks.note_and_wait, runs, tmp_path / "gate") for _ in range(2)]
        wait_until(lambda: runs.exists() and len(runs.read_text().split()) == 2)
        kill_server()
        wait_until(lambda: len(runs.read_text().split()) == 4)
        (tmp_path / "gate").touch()
        assert sorted(engine.fetch(running)) == sorted(engine.pids)
    assert len({*runs.read_text().split()}) == 4
    of_tasks = (
        "worker.train",
        "model.parameters",
        "model.losses",
        "model.metrics",
        "model.optimizers",
    )
    assert {f"compss_train.{name}" for name in of_tasks} <= set(names)


def test_without_forks_processes_import_anew(monkeypatch):
    system = SimpleNamespace(platform="darwin", stdout=sys.stdout, stderr=sys.stderr)
    monkeypatch.setattr(starter, "sys", system)
    with LocalEngine(processes=1) as engine:
        (parent,) = engine.fetch([engine.submit(os.getppid)])
        assert parent == os.getpid()
        os.kill(engine.pids[0], signal.SIGKILL)
        assert engine.fetch([engine.submit(tasks.add, 1)]) == [1]


def test_forked_processes_draw_numbers_of_their_own(local, tmp_path):
    drawn = local.fetch([local.submit(_meet_and_draw, tmp_path, number) for number in range(2)])
    assert drawn[0] != drawn[1]


def _meet_and_draw(place, number):
    tasks.meet(place, number, 2)
    return np.random.random()


def _meeting(engine, place: Path, size: int, resources=ONE_CPU):
    """Submit tasks that all run at the same time, or fail."""
    place.mkdir()
    return [engine.submit(tasks.meet, place, n, size, resources=resources) for n in range(size)]


@pytest.mark.usefixtures("forked_processes")
def test_reserved_tasks_run_at_the_same_time(tmp_path):
    with LocalEngine(processes=1) as engine:
        gate = tmp_path / "gate"
        running = engine.submit(tasks.wait_for, gate, "undisturbed")
        engine.reserve([ONE_CPU, ONE_CPU, Resources(cpus=2)])
        assert (engine.processes, engine.cpus) == (3, 4)
        meeting = _meeting(engine, tmp_path / "meeting", 2)
        assert engine.fetch(meeting) == [0, 1]
        gate.touch()
        assert engine.fetch([running]) == ["undisturbed"]
        assert engine.fetch(_meeting(engine, tmp_path / "again", 3)) == [0, 1, 2]
        engine.reserve([Resources(cpus=3), Resources(cpus=3)])  # enough processes, and too few CPUs
        assert (engine.processes, engine.cpus) == (3, 6)
        assert engine.fetch(_meeting(engine, tmp_path / "wide", 2, Resources(cpus=3))) == [0, 1]


def test_an_engine_grows_and_shrinks_while_tasks_run(tmp_path, forked_processes):
    with LocalEngine(processes=1) as engine:
        gate = tmp_path / "gate"
        running = engine.submit(tasks.wait_for, gate, "undisturbed")
        engine.resize(3)
        assert engine.fetch(_meeting(engine, tmp_path / "two", 2)) == [0, 1]
        engine.resize(1)
        assert (engine.processes, engine.cpus) == (1, 1)
        wait_until(lambda: len(alive(engine)) == 1)  # idle ones end, not the one that runs a task
        gate.touch()
        assert engine.fetch([running]) == ["undisturbed"]
        assert engine.fetch([engine.submit(tasks.add, n) for n in range(4)]) == [0, 1, 2, 3]
        engine.resize(2)
        engine.submit(tasks.add, 1, resources=Resources(cpus=2))
        with pytest.raises(ValueError, match="processes=1 have 1 CPUs, and a task needs 2"):
            engine.resize(1)
        with pytest.raises(ValueError, match="processes=0: give an integer of at least 1"):
            engine.resize(0)


def test_an_engine_does_not_shrink_below_what_has_to_run_at_the_same_time(forked_processes):
    with LocalEngine(processes=4) as engine:
        with engine.scope():
            engine.reserve([ONE_CPU, Resources(cpus=2)])
            for processes in (2, 1):  # too few CPUs, and too few processes
                with pytest.raises(
                    ValueError, match=rf"processes={processes} have .* 2 tasks, .* and need 3; give"
                ):
                    engine.resize(processes)
            engine.resize(3)
        engine.resize(1)
        assert engine.processes == 1


def test_processes_that_are_removed_leave_nothing_but_their_samples(tmp_path, forked_processes):
    def state():
        gc.collect()
        folders = [name for folder in engine.folders for name in os.listdir(folder)]
        return len(folders), len(engine.pids)

    def open_files():
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    with LocalEngine(processes=1) as engine:
        engine.fetch([engine.submit(tasks.add, 1)])
        before = settled(state)
        open_before = open_files()
        for times in range(1, 4):
            engine.resize(5)
            (tmp_path / str(times)).mkdir()
            refs = [
                engine.submit(_meet_and_report, tmp_path / str(times), number, 5)
                for number in range(5)
            ]
            engine.fetch(refs)
            assert engine.trained_samples() == 35 * times
            engine.resize(1)
            wait_until(lambda: state() == before, said=lambda: f"{state()} for {before}")
            # Fewer are open if connections of earlier tests have closed meanwhile.
            wait_until(
                lambda: open_files() <= open_before,
                said=lambda: f"{open_files()} files are open, and {open_before} were",
            )
            assert engine.trained_samples() == 35 * times


def _meet_and_report(place, number, size):
    tasks.meet(place, number, size)
    liveness.beat(7)


AT_THE_END = """
import concurrent.futures.thread, os, sys, threading
from compss_train import DistributedTrainer, LocalEngine
from tests.engines import tasks
from tests.helpers.waiting import wait_until

place = tasks.Path(sys.argv[1])
engine = LocalEngine(1)
running = engine.submit(tasks.wait_for, place / "gate", tasks.note(1, place / "notes"))
queued = [engine.submit(tasks.note, n, place / "notes") for n in range(20)]
trainer = DistributedTrainer(1, engine=engine)
# They go with a module that was imported earlier, when the names of this one are gone: this one is
# still there then.
os.kept = [trainer, *queued, sys.modules["compss_train.engines.graph_engine"]]

def open_gate():
    wait_until(lambda: concurrent.futures.thread._shutdown)
    (place / "gate").touch()

def let_the_scheduler_see_the_end():
    wait_until(lambda: not engine._scheduler.alive)

wait_until(lambda: engine._scheduler._running)
threading.Thread(target=open_gate, daemon=True).start()
threading.Thread(target=let_the_scheduler_see_the_end).start()
"""


def test_a_program_that_ends_with_queued_tasks_and_references_says_nothing(tmp_path):
    command = [sys.executable, "-c", AT_THE_END, tmp_path]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=LIMIT, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "gate").exists()
    assert (tmp_path / "notes").read_text() == "1\n"


def alive(engine):
    return [pid for pid in engine.pids if is_running(pid)]


def test_an_update_whose_process_dies_is_made_once(shared_local, tmp_path):
    target = shared_local.publish(0)
    made = [
        shared_local.commute(target, _plus_but_die_once, n, tmp_path / "flag") for n in range(4)
    ]
    shared_local.fetch(made)
    assert shared_local.fetch([target]) == [6]


def _plus_but_die_once(value, other, flag):
    return tasks.die_once(flag, value + other)


def test_a_task_that_always_kills_its_process_is_an_error(shared_local, monkeypatch):
    assert calls.MAX_RUNS == 4
    monkeypatch.setattr(calls, "MAX_RUNS", 2)
    with pytest.raises(
        WorkerLostError,
        match=r"task 'die' was running 2 times .* with SIGKILL.* memory most likely ran out",
    ):
        shared_local.fetch([shared_local.submit(tasks.die)])
    assert shared_local.fetch([shared_local.submit(tasks.add, 2)]) == [2]


def test_workers_leave_ctrl_c_to_the_coordinator(local):
    """Also in the first engine of a process, whose workers are started with loky's own helpers."""
    local.fetch([local.submit(tasks.add, n) for n in range(4)])
    for pid in local.pids:
        status = Path(f"/proc/{pid}/status").read_text()
        lines = dict(line.split(":\t") for line in status.splitlines() if "Sig" in line)
        blocked_or_ignored = int(lines["SigBlk"], 16) | int(lines["SigIgn"], 16)
        assert blocked_or_ignored >> (signal.SIGINT - 1) & 1


def interrupt() -> None:
    """Do what Python does in the main thread after another thread has received Ctrl-C."""
    signal.getsignal(signal.SIGINT)(signal.SIGINT, None)


class Interrupting:
    def __del__(self):
        interrupt()


def test_processes_that_may_have_no_children_train_all_the_same(monkeypatch):
    monkeypatch.setattr(multiprocessing.current_process(), "daemon", True)  # as in a pool
    with LocalEngine(1) as engine:
        assert engine.fetch([engine.submit(max, 1, 2)]) == [2]
    assert multiprocessing.current_process().daemon


def test_ctrl_c_in_a_start_leaves_no_process(monkeypatch):
    start_process = LokyProcess.start
    before = (children(), leftovers(os.getpid()))

    def start_and_interrupt(process):
        start_process(process)
        interrupt()

    # In a finalizer Python prints an exception and goes on; a process that loky does not know yet
    # stays.
    for owner, name, replacement in (
        (files, "remove_abandoned", lambda _: Interrupting()),
        (LokyProcess, "start", start_and_interrupt),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, replacement)
            with pytest.raises(KeyboardInterrupt):
                LocalEngine(1)
        wait_until(lambda: set(children()) <= set(before[0]))
        assert leftovers(os.getpid()) == before[1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.usefixtures("forked_processes")
@pytest.mark.parametrize("how", ["shut down", "interrupted meanwhile", "garbage collected"])
def test_nothing_is_left_of_an_engine_that_has_ended(how, monkeypatch):
    engine = LocalEngine(processes=1)
    paths = engine.folders
    processes = engine.pids
    if how != "garbage collected":
        ref = engine.submit(tasks.wait_for, tasks.Path("/never"), 0)
        if how == "interrupted meanwhile":
            with monkeypatch.context() as patch:
                patch.setattr(Scheduler, "finish_running", Mock(side_effect=KeyboardInterrupt))
                with pytest.raises(KeyboardInterrupt):
                    engine.shutdown()
        engine.shutdown(kill=True)
        with pytest.raises(EngineClosedError):
            ref.value.future.result(timeout=0)
    del engine
    gc.collect()
    wait_until(lambda: not any(map(is_running, processes)))
    assert not any(map(os.path.exists, paths))


def test_a_forked_child_does_not_end_the_engine(local):
    child = os.fork()
    if child == 0:
        local.end()
        os._exit(0)
    os.waitpid(child, 0)
    assert local.fetch([local.submit(tasks.add, 1)]) == [1]


class Kept:
    loaded_once = True

    def __init__(self, number):
        self.array = np.full(10, number)


def test_encoded_values_in_a_reference_cycle_are_collected():
    # Python before 3.12.7 crashes where a memoryview with exports is among them.
    for number in range(3):
        cycle = [*codec.dumps([Kept(number), np.zeros(10)])]
        cycle.append(cycle)
        del cycle
        assert gc.collect() > 0


@pytest.mark.usefixtures("forked_processes")
def test_a_dead_scheduler_is_an_error_not_a_hang(monkeypatch):
    with LocalEngine(processes=1) as engine:
        failure = RuntimeError("a fault of the scheduler")
        monkeypatch.setattr("threading.excepthook", lambda _: None)

        def fault(*_):
            raise failure

        waiting = engine.submit(tasks.wait_for, tasks.Path("/never"), 0)
        monkeypatch.setattr(Scheduler, "add_workers", fault)
        engine.resize(2)
        with pytest.raises(RuntimeError, match="a fault of the scheduler"):
            engine.fetch([waiting])
        with pytest.raises(EngineClosedError):
            engine.submit(tasks.add, 1)
        engine.shutdown(kill=True)


@pytest.mark.parametrize("code", [1, calls.LEFT])
def test_a_process_that_ends_with_its_fit_is_no_loss(shared_local, tmp_path, capsys, code):
    assert shared_local.fetch([shared_local.submit(tasks.end_once, tmp_path / "ended", code)]) == [
        code
    ]
    assert ("a worker process died" in capsys.readouterr().err) == (code == 1)
