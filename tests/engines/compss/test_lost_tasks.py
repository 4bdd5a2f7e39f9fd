"""The error of a task that COMPSs has lost says what the job that failed has printed."""

import pytest

from compss_train.engines.compss.lost_tasks import lost_task_error

TRACEBACK = """[EXECUTOR] executeTask - Error in task execution
Traceback (most recent call last):
  File "worker.py", line 736, in execute_task
ModuleNotFoundError: No module named 'torch'
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """COMPSs's folder of this run."""
    options = tmp_path / "options"
    options.write_text(f"-Dcompss.log.dir={tmp_path}/\n-Dcompss.python.interpreter=python3\n")
    monkeypatch.setenv("JVM_OPTIONS_FILE", str(options))
    (tmp_path / "jobs").mkdir()
    return tmp_path


def test_a_job_with_a_traceback_is_named_with_its_error(folder):
    (folder / "jobs" / "job2_NEW.out").write_text(TRACEBACK)
    text = str(lost_task_error())
    assert "ModuleNotFoundError: No module named 'torch'" in text
    assert "Workers run python3" in text
    assert "--python_interpreter=" in text
    assert str(folder / "jobs" / "job2_NEW.out") in text


def test_a_job_without_a_traceback_had_a_process_that_died(folder):
    (folder / "jobs" / "job10_NEW.out").write_text("FileNotFoundError: what job 9 has not made")
    (folder / "jobs" / "job9_NEW.out").write_text("no traceback")
    text = str(lost_task_error())
    assert "its worker process died" in text
    assert "jobs/job9_NEW.out" in text


def test_without_a_log_the_error_says_what_is_most_likely(monkeypatch):
    monkeypatch.delenv("JVM_OPTIONS_FILE", raising=False)
    assert "COMPSs lost a task: its worker process died" in str(lost_task_error())
