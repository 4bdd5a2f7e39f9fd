"""A study of 200 jobs on a real SLURM, some of which are killed, as its program is."""

import json
import os
import re
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from compss_train.reports.study_state import STUDY_FILE, read_study_state
from tests.helpers.processes import ROOT
from tests.helpers.slurm import DONE, SlurmCluster, skip_without_slurm
from tests.helpers.waiting import wait_until
from tests.soak.slurm_study import LIMIT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

JOBS = 200
PROGRAM = "study"
"""The name of the job of the study's program; those of its simulations begin as below."""
NAME = "simulation-"
STUDY_SCRIPT = f"""#!/bin/bash
#SBATCH --job-name={PROGRAM} --nodelist=node1 --ntasks=1 --no-requeue --output=compss-%j.out
exec python -m tests.soak.slurm_study $PWD {JOBS}
"""
# Fewer jobs run at a time than a node has cores, so that there is one for the program.
JOB_SCRIPT = """#!/bin/bash
#SBATCH --ntasks=1 --licenses=place:1 --no-requeue --output=compss-%j.out
exec python -m tests.soak.slurm_study job $PWD
"""


class SlurmStudy:
    """A study on a cluster, whose queue is looked at all the time that a test waits."""

    def __init__(self, folder):
        environment = {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT),
        }
        self.folder = folder
        self.cluster = SlurmCluster(folder, environment, cpus=6)
        self.most = 0
        """How many jobs of simulations were in the queue at a time, at most."""
        self.looks = 0
        (folder / "study.sh").write_text(STUDY_SCRIPT)
        (folder / "job.sh").write_text(JOB_SCRIPT)

    def start(self):
        """Submit the program of the study; return its id."""
        return self.cluster.run("sbatch", "--parsable", "study.sh").strip()

    def queued(self):
        """Return the state of each job of a simulation in the queue, by its id."""
        lines = self.cluster.run("squeue", "-h", "-o", "%i %j %T").splitlines()
        jobs = [line.split() for line in lines]
        states = {job: state for job, name, state in jobs if name != PROGRAM}
        self.looks += 1
        self.most = max(self.most, len(states))
        return states

    def done(self):
        """Return how many simulations are complete."""
        if not (self.folder / "saves" / STUDY_FILE).exists():
            return 0
        return read_study_state(self.folder / "saves").inputs["done"]

    def wait(self, condition, program, *, ends=False):
        """Wait for what depends on the jobs in the queue, as long as the program runs; return them.

        With ``ends`` the program may end.
        """
        queued = {}

        def holds():
            nonlocal queued
            queued = self.queued()
            if condition(queued):
                return True
            state = self.cluster.state(program)
            assert ends or state not in DONE, f"{state}: {self.cluster.output(program)}"
            return False

        wait_until(holds, 3000.0, every=0.2, said=lambda: self.cluster.output(program))
        return queued

    def kill(self, job):
        """Kill all processes of a job, as a node that has no memory left does."""
        killed = 0
        for process in self.cluster.root.children(recursive=True):
            with suppress(psutil.Error):
                if process.environ().get("SLURM_JOB_ID") == job:
                    process.kill()
                    killed += 1
        assert killed

    def cancel(self, job):
        """Cancel a job, as a user does."""
        self.cluster.run("scancel", job)

    def log(self):
        """Return what jobs have noted, in order: "begun" or "ended", their names and ids."""
        return [line.split() for line in (self.folder / "log").read_text().splitlines()]

    def doubled(self, killed):
        """Return the jobs that had not ended when another one of their simulation began."""
        running = {}
        doubled = []
        for event, name, job in self.log():
            earlier = running.pop(name, None)
            if event == "begun":
                running[name] = job
                doubled += [earlier] if earlier is not None and earlier not in killed else []
        return doubled


@pytest.fixture
def study(tmp_path):
    skip_without_slurm()
    study = SlurmStudy(tmp_path)
    yield study
    study.cluster.end()


def test_a_study_of_200_jobs_some_of_which_are_killed_as_its_program_is(study, tmp_path):
    program = study.start()
    killed = []
    for count, state, kill in (
        (JOBS // 20, "RUNNING", study.kill),
        (JOBS // 7, "RUNNING", study.cancel),
        (JOBS // 4, "PENDING", study.cancel),
    ):

        def is_time(queued, count=count, state=state):
            return study.done() >= count and state in queued.values()

        queued = study.wait(is_time, program)
        # The last one, which has not sent its samples yet.
        killed.append(max((job for job in queued if queued[job] == state), key=int))
        kill(killed[-1])
    for count in (2 * JOBS // 5, 2 * JOBS // 3):
        study.wait(lambda queued, count=count: study.done() >= count, program)
        study.kill(program)
        study.cluster.wait(program, DONE)
        assert not (tmp_path / "ended.json").exists()
        program = study.start()
    study.wait(lambda queued: study.cluster.state(program) in DONE, program, ends=True)
    assert study.cluster.state(program) == "COMPLETED", study.cluster.output(program)
    wait_until(lambda: not study.queued())
    ended = json.loads((tmp_path / "ended.json").read_text())
    report = {
        "looks at the queue": study.looks,
        "jobs in it at most": study.most,
        "jobs that ran": sum(event == "begun" for event, _, _ in study.log()),
        "samples": Counter(ended["counts"]),
        "simulations": ended["simulations"],
        "warnings": ended["warnings"],
    }
    print(json.dumps(report, indent=1))
    # Those that came after the last save, as the senders of the jobs that ran on say.
    output = "".join(path.read_text() for path in tmp_path.glob("compss-*.out"))
    lost = re.findall(r"(\d+) of the first \d+ samples of '\S+' are lost", output)
    assert ended["simulations"] == {"running": 0, "done": JOBS, "failed": 0}
    assert max(ended["counts"]) == 1
    assert ended["counts"].count(0) == sum(map(int, lost))
    assert study.most == LIMIT
    assert study.doubled(killed) == []
