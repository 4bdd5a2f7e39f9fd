"""What this process knows of COMPSs's runtime: its part, the declared nodes, and what fits on
them.
"""

import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import pytest

from compss_train import DistributedTrainer
from compss_train.engines import CompssEngine, LocalEngine, Resources, SerialEngine, engine_class
from compss_train.engines.compss import runtime
from compss_train.engines.nodes import Node, check_room
from compss_train.exceptions import ScriptLoadingError
from tests.engines.compss.applications import declare_nodes
from tests.helpers.waiting import LIMIT


@pytest.fixture
def as_main_program(monkeypatch):
    """Let this process look like the main program of an application."""
    monkeypatch.delenv("COMPSS_TRAIN_ENGINE", raising=False)
    where = SimpleNamespace(CONTEXT=SimpleNamespace(in_master=lambda: True))
    monkeypatch.setitem(sys.modules, "pycompss.util.context", where)


def test_auto_is_compss_in_its_main_program_only(as_main_program, monkeypatch):
    assert engine_class("auto") is CompssEngine
    monkeypatch.setenv("COMPSS_TRAIN_ENGINE", "local")
    assert engine_class("auto") is LocalEngine
    monkeypatch.delenv("COMPSS_TRAIN_ENGINE")
    monkeypatch.delitem(sys.modules, "pycompss.util.context")
    assert not runtime.under_compss()
    assert engine_class("auto") is LocalEngine


def test_while_the_script_is_imported_there_is_no_compss_yet(as_main_program, monkeypatch):
    loading = [True]
    monkeypatch.setattr(
        sys.modules["pycompss.util.context"].CONTEXT,
        "is_loading",
        lambda: loading[0],
        raising=False,
    )
    for name in ("auto", "compss"):
        with pytest.raises(ScriptLoadingError, match="imports a script before it runs it"):
            DistributedTrainer(2, engine=name)
    assert engine_class("local") is LocalEngine
    loading[0] = False
    assert engine_class("auto") is CompssEngine


@pytest.fixture
def alarm():
    """Let a test set an alarm for 100 s, which does not ring."""
    before = signal.getsignal(signal.SIGALRM)
    yield lambda handler: (signal.signal(signal.SIGALRM, handler), signal.alarm(100))
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_the_time_left_is_that_of_the_alarm_of_pycompss(as_main_program, alarm):
    def of_pycompss(number, frame):
        raise AssertionError("it rang")

    def another(number, frame):
        raise AssertionError("it rang")

    assert CompssEngine.time_left() is None
    alarm(another)
    assert CompssEngine.time_left() is None
    of_pycompss.__module__ = "pycompss.runtime.binding"
    alarm(of_pycompss)
    assert 90 < CompssEngine.time_left() <= 100
    assert LocalEngine.time_left() is None


def test_more_gpus_than_declared_are_an_error_before_any_task(
    as_main_program, monkeypatch, tmp_path
):
    declare_nodes(monkeypatch, tmp_path, ("first", 4, 2))
    CompssEngine.check_gpus(2)
    with pytest.raises(
        ValueError, match=("num_gpu=3, but the compss engine has 2 GPUs; use num_gpu=2")
    ):
        CompssEngine.check_gpus(3)


def test_without_pycompss_the_engine_is_an_import_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "pycompss.api.api", None)
    for make in (CompssEngine, lambda: engine_class("compss")):
        with pytest.raises(ImportError, match=r"needs PyCOMPSs.*runcompss.*engine='local'"):
            make()


def test_in_plain_python_compss_is_the_serial_engine(monkeypatch):
    monkeypatch.setitem(sys.modules, "pycompss.api.api", ModuleType("pycompss.api.api"))
    assert engine_class("compss") is SerialEngine
    with pytest.raises(RuntimeError, match="start the program with runcompss"):
        CompssEngine()


def test_units_of_dislibs_variable_are_the_threads(as_main_program, monkeypatch):
    monkeypatch.setenv("ComputingUnits", "6")
    assert CompssEngine.thread_share(2) == 6


PROGRAM = """
import atexit, ctypes, sys
from compss_train.engines.compss.runtime import skip_destructors_at_exit
libc = ctypes.CDLL(None)
libc.on_exit(libc.abort, None)  # as a library's destructors are registered when it is loaded
atexit.register(print, "python's own ran", flush=True)
skip_destructors_at_exit()
skip_destructors_at_exit()
sys.exit(3)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's on_exit")
def test_the_exit_code_stays_and_destructors_do_not_run():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 3, done.stderr
    assert done.stdout == "python's own ran\n"


@pytest.fixture
def pipes(tmp_path):
    """The ends of the pipes of a worker process: commands for it to read, and its answers for Java
    to read.
    """
    for name in ("pipe_1.outbound", "pipe_1.inbound"):
        os.mkfifo(tmp_path / name)
    ends = [
        os.open(tmp_path / f"pipe_1.{way}", os.O_RDONLY | os.O_NONBLOCK)
        for way in ("outbound", "inbound")
    ]
    yield ends
    for end in ends:
        os.close(end)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
def test_the_reader_of_answers_waits_while_the_process_lives(pipes):
    _, answers = pipes
    assert os.read(answers, 1) == b""  # no writer: the end of the file, after which Java sleeps
    kept = runtime.keep_answer_pipe_open()
    with pytest.raises(BlockingIOError):  # a reader that may wait is woken by the answer
        os.read(answers, 1)
    os.close(kept)
    assert os.read(answers, 1) == b""


def test_nodes_are_those_of_the_configuration(monkeypatch, tmp_path):
    declare_nodes(monkeypatch, tmp_path, ("first", 4), ("second", 2, 3))
    assert runtime.declared_nodes() == [Node("first", 4, 0), Node("second", 2, 3)]


def nodes(*sizes):
    return [Node(f"n{place}", *size) for place, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("tasks", "sizes", "fits"),
    [
        ([], [(1, 0)], True),
        ([(1, 0)] * 4, [(4, 0)], True),
        ([(1, 0)] * 5, [(4, 0)], False),
        ([(3, 0), (3, 0)], [(4, 0), (2, 0)], False),  # six units, but a task runs on one node
        # Only with the large ones first.
        ([(1, 0), (1, 0), (3, 0), (3, 0)], [(4, 0), (4, 0)], True),
        ([(1, 1)] * 2, [(4, 1)], False),
        ([(1, 1)] * 2, [(4, 1), (1, 1)], True),
        # Only with the GPU's node left to the task that takes it.
        ([(4, 0), (1, 1)], [(4, 1), (4, 0)], True),
        ([(2, 0), (2, 1)], [(4, 1)], True),
    ],
)
def test_tasks_fit_where_each_finds_room_on_one_node(tasks, sizes, fits):
    asked = [Resources(*task) for task in tasks]
    for order in (1, -1):
        with nullcontext() if fits else pytest.raises(ValueError, match="they do not fit"):
            check_room(asked[::order], nodes(*sizes)[::order], "")


def test_an_error_names_what_is_needed_and_what_is_declared():
    with pytest.raises(
        ValueError,
        match=r"3 tasks have to run at the same time and need 6 computing units and 1 GPUs, but .* "
        r"n0 4 computing units and 1 GPUs, n1 1 computing units\. Use fewer workers, simulators or "
        r"threads, or declare more .*--units",
    ):
        check_room(
            [Resources(2), Resources(2), Resources(2, 1)],
            nodes((4, 1), (1, 0)),
            ("declare more (--units)"),
        )


@pytest.mark.parametrize(
    ("affinity", "units", "warns"),
    [("automatic", 10_000, True), ("automatic", 1, False), ("disabled", 10_000, False)],
)
def test_units_that_are_bound_to_missing_cores_are_a_warning(
    monkeypatch, tmp_path, affinity, units, warns
):
    options = tmp_path / "options"
    options.write_text(f"-Dcompss.worker.cpu_affinity={affinity}\n")
    monkeypatch.setenv(runtime.JVM_OPTIONS, str(options))
    warning = runtime.units_beyond_cores([Node("localhost", units), Node("elsewhere", 10_000)])
    assert (warning is not None) == warns
    assert not warns or "localhost declares 10000 computing units" in warning
