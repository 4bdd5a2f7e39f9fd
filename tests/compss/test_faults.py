"""Failures are reported immediately and end the application with an exit code."""

import re
import signal

import pytest

from tests.helpers.processes import wait_until


def test_a_tasks_exception_reaches_the_user_with_its_traceback(run, tmp_path):
    done = run("faulty.py", "raise", tmp_path / "flag", seconds=60)
    assert done.returncode == 1, done.output
    assert "in forward" in done.output
    assert re.search(r"^RuntimeError: the network is broken here", done.output, re.MULTILINE)
    assert "trained to the end" not in done.output


@pytest.mark.timeout(150)
def test_a_worker_process_that_dies_ends_the_run(run, tmp_path):
    done = run("faulty.py", "die", tmp_path / "flag", seconds=120)
    assert done.returncode == 1, done.output
    assert "WorkerLostError: COMPSs lost a task" in done.output
    assert "trained to the end" not in done.output


@pytest.mark.timeout(380)
def test_with_a_timeout_workers_that_stop_or_die_are_replaced(run, tmp_path):
    ends = []
    for how in ("never", "stop", "kill"):
        done = run("faulty.py", how, tmp_path / how, seconds=120)
        assert done.returncode == 0, done.output
        assert (tmp_path / how).exists() == (how != "never")
        ends.append(re.search(r"^trained to the end (\w+)$", done.output, re.MULTILINE)[1])
    assert len(set(ends)) == 1


def test_ctrl_c_ends_the_application(launch, tmp_path):
    application = launch("faulty.py", "wait", tmp_path / "flag")
    wait_until((tmp_path / "flag").exists, 60)
    application.process.send_signal(signal.SIGINT)
    done = application.wait(30)
    assert done.returncode == 130, done.output
    assert "trained to the end" not in done.output


def test_an_application_that_compss_aborts_ends(run):
    done = run("aborted.py", seconds=60)
    assert done.returncode not in (0, None), done.output
