"""Signals that end a program on Ray, which has handlers of its own."""

import os
import signal
import subprocess
import sys
from concurrent.futures import Future

import psutil
import pytest

from compss_train.engines.ray import submitter
from compss_train.exceptions import TaskCancelledError
from tests.compss.conftest import INSIDE
from tests.engines import tasks
from tests.helpers.processes import ROOT
from tests.helpers.waiting import LIMIT, text_of, wait_until


@pytest.mark.parametrize("is_joined_before", [False, True])
def test_sigterm_stops_a_fit_although_ray_has_a_handler(tmp_path, is_joined_before):
    join = "ray.init('local', num_cpus=1, include_dashboard=False)" if is_joined_before else ""
    program = f"""
import ray, runpy, sys
{join}
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    path = INSIDE / "resumed.py"
    done = subprocess.run(
        [sys.executable, "-c", program, path, tmp_path, "3", str(int(signal.SIGTERM))],
        env={**os.environ, "COMPSS_TRAIN_ENGINE": "ray", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 143, done.stderr
    assert "fit interrupted by SIGTERM; last complete round: 3" in done.stderr


class Silent:
    """What Ray would answer, if it did."""

    def future(self):
        return Future()


@pytest.mark.parametrize("is_watched", [True, False])
def test_tasks_are_cancelled_although_ray_does_not_answer(
    is_watched, shared_ray, monkeypatch, tmp_path, capfd
):
    """A watched task, as those of fits, ends with its process and does not begin anew."""
    monkeypatch.setattr(submitter, "CANCEL_SECONDS", 0.1)
    notes = tmp_path / "notes"
    gate = tmp_path / "gate"
    with shared_ray.scope(watched=is_watched), monkeypatch.context() as context:
        ref = shared_ray.submit(tasks.note_and_wait, notes, gate)
        pid = int(text_of(notes))
        context.setattr(submitter.Submitter, "_noted", lambda _: Silent())
        shared_ray.cancel()
    assert "Ray does not answer: 1 cancelled tasks end" in capfd.readouterr().err
    with pytest.raises(TaskCancelledError):
        shared_ray.fetch([ref])
    if is_watched:
        wait_until(lambda: not psutil.pid_exists(pid))
    gate.touch()
    assert shared_ray.fetch([shared_ray.submit(tasks.add, 1, 2)]) == [3]
    assert len(notes.read_text().splitlines()) == 1
