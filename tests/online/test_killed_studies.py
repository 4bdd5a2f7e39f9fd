"""Programs of studies that are killed with all their processes, or told to end, and started again."""

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from compss_train.training.checkpoints import list_checkpoints
from tests.helpers.processes import ROOT, session
from tests.helpers.waiting import wait_until
from tests.online.study_program import SAMPLES, SIMULATIONS
from tests.online.test_resuming import complete_ones

KILLS = 5
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


def begun(folder, numbers):
    return {number: (folder / f"begun-{number}").stat().st_size for number in numbers}


@pytest.mark.parametrize("kind", ["FIFO", "FIRO", "Reservoir", "BatchReservoir"])
def test_a_program_that_is_killed_and_told_to_end_trains_each_sample(tmp_path, kind):
    draw, saves, ended = random.Random(kind), tmp_path / "saves", tmp_path / "ended.json"
    for number in range(KILLS + 1):
        until = max(list_checkpoints(saves), default=0) + draw.randint(1, 4)
        program = start(tmp_path, kind)
        wait_until(lambda until=until: ended.exists() or max(list_checkpoints(saves), default=0) >= until, 60)
        if number < KILLS:
            kill(program)
        else:  # as SLURM does before the end of a job's time
            os.kill(program.pid, signal.SIGTERM)
            assert program.wait(30) in (143, 0)
        complete = complete_ones(saves)
        before = begun(tmp_path, complete)
        wait_until(lambda pid=program.pid: not session(pid), 30)
    if not ended.exists():
        assert start(tmp_path, kind).wait(120) == 0
    assert begun(tmp_path, complete) == before
    counts = json.loads(ended.read_text())["counts"]
    assert len(counts) == SAMPLES
    assert min(counts) >= 1
    assert max(counts) == 1 or kind == "Reservoir"


def test_a_program_in_lockstep_that_is_killed_has_the_inputs_and_the_bits_of_an_undisturbed_one(tmp_path):
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    for folder in (undisturbed, killed):
        folder.mkdir()
    assert start(undisturbed, "lockstep").wait(120) == 0
    ended, saves = killed / "ended.json", killed / "saves"
    for more in (3, 5):
        until = max(list_checkpoints(saves), default=0) + more
        program = start(killed, "lockstep")
        wait_until(lambda until=until: ended.exists() or max(list_checkpoints(saves), default=0) >= until, 60)
        assert not ended.exists()
        kill(program)
    assert start(killed, "lockstep").wait(120) == 0
    expected, found = (json.loads((folder / "ended.json").read_text()) for folder in (undisturbed, killed))
    assert len(expected["inputs"]) == SIMULATIONS
    assert "far and hard" in {each["origin"] for each in expected["inputs"]}
    assert found == expected
