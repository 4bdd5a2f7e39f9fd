"""Programs of studies that are killed with all their processes, or told to end, and started
again.
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import compss_train
from compss_train.training.checkpoints import list_checkpoints
from tests.helpers.processes import ROOT, session
from tests.helpers.waiting import LIMIT, wait_until
from tests.online.study_program import SAMPLES, SIMULATIONS

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


def start(folder, kind):
    command = [sys.executable, "-m", "tests.online.study_program", str(folder), kind]
    return subprocess.Popen(command, cwd=ROOT, start_new_session=True)


def kill(program):
    """Kill all processes of a program at once, as a machine that fails does."""
    for pid in session(program.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    program.wait()


def watched(folder):
    command = [sys.executable, "-m", "compss_train", "watch", str(folder), "--json"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return process.returncode, json.loads(process.stdout) if process.stdout else {}


def test_other_programs_see_that_a_study_runs_was_killed_goes_on_and_is_complete(tmp_path):
    program = start(tmp_path, "FIFO")
    wait_until(lambda: list_checkpoints(tmp_path / "saves"))
    code, state = watched(tmp_path)
    assert (code, state["state"], state["process"]) == (0, "running", program.pid)
    assert state["simulations"][0]["process"] in session(program.pid)
    assert sum(state["inputs"].values()) == SIMULATIONS
    kill(program)
    code, state = watched(tmp_path)
    assert (code, state["state"]) == (1, "killed")
    program = start(tmp_path, "FIFO")
    wait_until(lambda: watched(tmp_path)[1]["state"] == "running")
    assert watched(tmp_path)[1]["resumed_from"].startswith("round-")
    assert program.wait(LIMIT) == 0
    code, state = watched(tmp_path)
    assert (code, state["state"]) == (0, "complete")
    assert state["inputs"] == {"running": 0, "done": SIMULATIONS, "failed": 0, "awaited": 0}


JOB_SCRIPT = """source {scripts}/requeue.sh
#  --log_dir={folder} --x
exec {python} -m tests.online.study_program {folder} FIFO pycompss/runtime/launch.py
"""


def test_a_job_that_is_warned_saves_is_queued_again_and_goes_on(tmp_path):
    """By the script that jobs of SLURM begin with; it knows the program by the name of COMPSs's
    launcher.
    """
    job = tmp_path / "job.sh"
    saves = tmp_path / "saves"
    ended = tmp_path / "ended.json"
    scripts = Path(compss_train.__file__).parents[1] / "runcompss"
    job.write_text(JOB_SCRIPT.format(scripts=scripts, folder=tmp_path, python=sys.executable))
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/requeued\n')
    (tmp_path / "scontrol").chmod(0o755)
    variables = {
        "SLURM_JOB_ID": "7",
        "COMPSS_TRAIN_REQUEUES": "2",
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }

    def start_job(**more):
        return subprocess.Popen(
            ["bash", "-e", job],
            cwd=ROOT,
            env={**os.environ, **variables, **more},
            start_new_session=True,
        )

    first = start_job()
    wait_until(lambda: list_checkpoints(saves))
    before = max(list_checkpoints(saves))
    first.send_signal(signal.SIGTERM)
    assert first.wait(LIMIT) == 143
    assert not ended.exists()
    assert max(list_checkpoints(saves)) > before
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"
    assert start_job(SLURM_RESTART_COUNT="1").wait(LIMIT) == 0
    assert json.loads(ended.read_text())["counts"] == [1] * SAMPLES
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"


def test_a_program_in_lockstep_that_is_killed_has_the_inputs_and_the_bits_of_an_undisturbed_one(
    tmp_path,
):
    undisturbed = tmp_path / "undisturbed"
    killed = tmp_path / "killed"
    for folder in (undisturbed, killed):
        folder.mkdir()
    assert start(undisturbed, "lockstep").wait(LIMIT) == 0
    ended = killed / "ended.json"
    saves = killed / "saves"
    for more in (3, 5):
        until = max(list_checkpoints(saves), default=0) + more
        program = start(killed, "lockstep")
        wait_until(
            lambda until=until: ended.exists() or max(list_checkpoints(saves), default=0) >= until
        )
        assert not ended.exists()
        kill(program)
    assert start(killed, "lockstep").wait(LIMIT) == 0
    expected, found = (
        json.loads((folder / "ended.json").read_text()) for folder in (undisturbed, killed)
    )
    assert len(expected["inputs"]) == SIMULATIONS
    assert "far and hard" in {each["origin"] for each in expected["inputs"]}
    assert found == expected
