"""The agent of a node, outside of Ray."""

import errno
import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import ray

from compss_train._utils import files
from compss_train.engines import liveness
from compss_train.engines.ray import agent
from tests.helpers.waiting import LIMIT


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the processes of node 1 report to engine 2."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    context = SimpleNamespace(get_node_id=lambda: "1")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    return tmp_path / "compss_train-ray-1-2"


@pytest.fixture
def victim():
    """A process that somebody wants the agent to send signals to."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield psutil.Process(process.pid)
        process.kill()


def report(folder: Path, process: psutil.Process) -> Path:
    """Report, as a process that runs a task; return the file."""
    path = folder / agent.id_of(process)
    path.write_bytes(bytes(liveness.SIZE))
    heartbeat = liveness.Heartbeat(str(path))
    heartbeat.report(doing="task 'wait'")
    heartbeat.report(5)
    return path


@pytest.mark.parametrize("how", ["own", "rights", "link", "user"])
def test_processes_that_others_could_have_reported_are_not_watched(
    folder, victim, how, monkeypatch
):
    place = folder.with_name("elsewhere") if how == "link" else folder
    place.mkdir(mode=0o700)
    report(place, victim)
    if how == "rights":
        place.chmod(0o777)
    elif how == "link":
        folder.symlink_to(place)
    elif how == "user":
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    watching = agent.Agent("1", "2")
    try:
        if how == "own":
            watching.look()
            assert watching.samples() == 5
        else:
            with pytest.raises(ValueError, match="others could write to it"):
                watching.look()
            assert watching.samples() == 0
    finally:
        with suppress(ValueError):
            watching.close()


def test_a_process_that_dies_during_a_task_is_named_with_what_runs_again(folder, victim, capsys):
    folder.mkdir(mode=0o700)
    report(folder, victim)
    watching = agent.Agent("1", "2")
    try:
        watching.look()
        victim.kill()
        victim.wait()
        watching.look()
        watching.look()
    finally:
        watching.close()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"compss_train: process {victim.pid} on {socket.gethostname()} died during task 'wait', "
    )
    assert line.endswith("which runs again unless its fit has ended, at most 4 times in all")


def test_reports_stay_when_abandoned_temporary_folders_are_removed(folder, victim):
    """Other rooms make such folders in the same place, and first remove what nobody has locked."""
    watching = agent.Agent("1", "2")
    try:
        watching.look()
        (place,) = folder.parent.iterdir()
        path = report(place, victim)
        long_ago = place.stat().st_mtime - 10 * files.MINIMUM_AGE
        os.utime(place, (long_ago, long_ago))
        files.remove_abandoned(str(folder.parent))
        assert path.exists()
    finally:
        watching.close()


@pytest.mark.parametrize("fault", ["full disk", "forgotten"])
def test_processes_end_although_a_file_fails(folder, victim, fault, monkeypatch):
    """The disk has no room for the note that no other task begins, or another process is gone."""
    folder.mkdir(mode=0o700)
    path = report(folder, victim)
    liveness.Heartbeat(str(path)).watch(fit=7, timeout=0.0)
    if fault == "full disk":
        monkeypatch.setattr(Path, "touch", no_room)
    else:
        (folder / "1-1").symlink_to("gone")
    agent.end_fits("2", [7])
    assert victim.wait(LIMIT) == -signal.SIGKILL


def no_room(*_, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
