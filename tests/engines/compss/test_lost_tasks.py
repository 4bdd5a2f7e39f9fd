"""The error of a task that COMPSs has lost names the node, and what the failed job has printed."""

import socket

import pytest

from compss_train.engines.compss import lost_tasks
from compss_train.engines.compss.configuration import free_first_port, loopback_nodes, write
from compss_train.engines.compss.lost_tasks import lost_task_error, silent_nodes

TRACEBACK = """[EXECUTOR] executeTask - Error in task execution
Traceback (most recent call last):
  File "worker.py", line 736, in execute_task
ModuleNotFoundError: No module named 'torch'
"""


LOST_VALUE = (
    "Job failed because the data d57v1_1.IT couldn't be retrieved. Check worker logs for more "
    "information about the error."
    "es.bsc.compss.nio.exceptions.DataNotAvailableException: d17v1_1.IT\n"
)
LOST_FILE = TRACEBACK.replace(
    "ModuleNotFoundError: No module named 'torch'",
    "FileNotFoundError: [Errno 2] No such file or directory: '/tmp/worker/d2v1_1.IT'",
)
EMPTY_INPUT = TRACEBACK.replace(
    "ModuleNotFoundError: No module named 'torch'",
    "ValueError: invalid literal for int() with base 10: b''",
)
LOG = "JobManager @failed - Job {}, running Task 12 on worker {}, has failed.\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """COMPSs's folder of this run."""
    options = tmp_path / "options"
    options.write_text(f"-Dcompss.log.dir={tmp_path}/\n-Dcompss.python.interpreter=python3\n")
    monkeypatch.setenv("JVM_OPTIONS_FILE", str(options))
    (tmp_path / "jobs").mkdir()
    (tmp_path / "runtime.log").write_text(LOG.format(9, "n1") + LOG.format(10, "n2"))
    return tmp_path


def fail(folder, number, printed):
    (folder / "jobs" / f"job{number}_NEW.out").write_text(printed)


def test_a_job_with_a_traceback_is_named_with_its_node_and_error(folder):
    fail(folder, 10, TRACEBACK)
    text = str(lost_task_error())
    assert "it failed on node n2 with ModuleNotFoundError: No module named 'torch'" in text
    assert "Workers run python3" in text
    assert "--python_interpreter=" in text
    assert str(folder / "jobs" / "job10_NEW.out") in text


def test_a_job_without_a_traceback_had_a_process_that_died(folder):
    fail(folder, 10, "FileNotFoundError: what job 9 has not made")
    fail(folder, 9, "no traceback")
    text = str(lost_task_error())
    assert "its worker process on node n1 died" in text
    assert "jobs/job9_NEW.out" in text


def test_without_its_line_in_the_log_a_job_ran_where_compss_has_printed(folder):
    (folder / "runtime.log").unlink()
    fail(folder, 9, "no traceback")
    text = str(lost_task_error())
    assert 'on the node that COMPSs has printed above ("Job 9, running ...")' in text


@pytest.mark.parametrize(
    ("printed", "name"), [(LOST_VALUE, "d17v1_1.IT"), (LOST_FILE, "/tmp/worker/d2v1_1.IT")]
)
def test_a_value_that_no_node_has_any_more_is_named(folder, printed, name):
    fail(folder, 9, printed)
    text = str(lost_task_error())
    assert f"a job on node n1 did not find a value of an earlier task, {name}" in text
    assert "WorkingDir" in text
    assert "resume=True" in text


def test_a_job_without_its_input_is_not_the_cause(folder):
    fail(folder, 9, EMPTY_INPUT)
    fail(folder, 10, LOST_VALUE)
    assert "a job on node n2 did not find" in str(lost_task_error())


def test_a_node_that_does_not_answer_is_named(folder):
    port = free_first_port(2)
    with socket.socket() as worker:
        worker.bind(("127.0.0.1", port))
        worker.listen()
        files = write(folder, loopback_nodes(2, 1, first_port=port), python="/python")
        with (folder / "options").open("a") as options:
            for kind, file in zip(("project", "resources"), files, strict=True):
                options.write(f"-Dcompss.{kind}.file={file}\n")
        # The second one has the next ten ports of 127.0.0.2.
        assert silent_nodes() == ["127.0.0.2"]
        fail(folder, 9, LOST_VALUE)
        text = str(lost_task_error())
    assert "node 127.0.0.2 no longer answers" in text
    assert "resume=True" in text
    assert "jobs/job9_NEW.out" in text


def test_without_a_log_the_error_says_what_is_most_likely(monkeypatch):
    monkeypatch.setattr(lost_tasks, "_FILES_SECONDS", 0.0)
    monkeypatch.delenv("JVM_OPTIONS_FILE", raising=False)
    assert "COMPSs lost a task: its worker process died" in str(lost_task_error())


def test_the_file_of_a_failed_job_comes_late(folder, monkeypatch):
    monkeypatch.setattr(lost_tasks.time, "sleep", lambda _: fail(folder, 9, "no traceback"))
    assert "its worker process on node n1 died" in str(lost_task_error())
