"""``slurm_job.sh`` on a real SLURM cluster: jobs are queued again until their fit is complete."""

import os
import re
import sys
from pathlib import Path

import pytest

from compss_train.model import parameters
from tests.compss.conftest import INSIDE
from tests.compss.inside.resumed import fit
from tests.helpers.models import assert_same_bits
from tests.helpers.processes import ROOT
from tests.helpers.slurm import DONE, SlurmCluster, skip_without_slurm

SCRIPT = ROOT / "runcompss" / "slurm_job.sh"
RAY_OPTIONS = ["--nodes=2", "--ntasks-per-node=1", "--exclusive", "--ray"]
WARNED = "scancel --batch --signal=TERM $SLURM_JOB_ID; sleep 100"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    skip_without_slurm()
    folders = [str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {"PATH": os.pathsep.join(folders), "PYTHONPATH": str(ROOT)}
    cluster = SlurmCluster(tmp_path_factory.mktemp("slurm"), environment)
    yield cluster
    cluster.end()


def submit(cluster, *words, **variables):
    """Submit a job as users do, and return its number."""
    settings = [f"{name}={value}" for name, value in variables.items()]
    flags = ["--time=5", "--output=compss-%j.out"]
    options = [word for word in words if str(word).startswith("--") and word != "--ray"]
    program = [word for word in words if word not in options]
    said = cluster.run("env", *settings, "sbatch", *flags, *options, SCRIPT, *program)
    return re.search(r"Submitted batch job (\d+)", said)[1]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("engine", "options"),
    [("local", []), pytest.param("ray", RAY_OPTIONS, marks=pytest.mark.slow)],
)
def test_a_job_that_slurm_warns_is_queued_again_and_resumes(cluster, engine, options):
    folder = cluster.folder / f"run-{engine}"
    job = submit(cluster, *options, "python", INSIDE / "resumed.py", folder, 3, "batch")
    cluster.await_restart(job)
    assert "fit interrupted by SIGTERM; last complete round: 3" in cluster.output(job)
    assert cluster.wait(job, DONE) == "COMPLETED", cluster.output(job)
    assert f"round-000003 on {engine}" in cluster.output(job)
    apart, _ = fit(cluster.folder / f"apart-{engine}", "serial", [])
    assert_same_bits(parameters.load(folder / "trained.npz"), apart)


@pytest.mark.timeout(300)
def test_a_job_whose_fit_max_time_stops_is_queued_again(cluster):
    folder = cluster.folder / "max_time"
    program = (
        "import os, sys; from pathlib import Path; from tests.compss.inside.resumed import fit;"
        "limit = None if 'SLURM_RESTART_COUNT' in os.environ else 1e-9;"
        "fit(Path(sys.argv[1]), 'serial', [], max_time=limit)"
    )
    job = submit(cluster, "python", "-c", program, folder)
    cluster.await_restart(job)
    assert cluster.wait(job, DONE) == "COMPLETED", cluster.output(job)
    assert cluster.restarts(job) == 1


@pytest.mark.timeout(300)
def test_a_job_that_is_warned_before_its_fit_is_queued_again_so_often(cluster):
    job = submit(cluster, "bash", "-c", WARNED, REQUEUES=1)
    cluster.await_restart(job)
    assert cluster.wait(job, DONE) == "FAILED", cluster.output(job)
    assert cluster.restarts(job) == 1


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("program", "state"), [("exit 0", "COMPLETED"), ("exit 3", "FAILED")])
def test_a_job_that_is_done_or_has_failed_ends(cluster, program, state):
    job = submit(cluster, "bash", "-c", program)
    assert cluster.wait(job, DONE) == state, cluster.output(job)
    assert cluster.restarts(job) == 0


@pytest.mark.timeout(300)
def test_a_job_that_its_user_cancels_ends(cluster):
    job = submit(cluster, "bash", "-c", "echo started; sleep 100")
    cluster.wait(job, {"RUNNING"})
    cluster.run("scancel", job)
    assert cluster.wait(job, DONE, 60) == "CANCELLED", cluster.output(job)
    assert cluster.restarts(job) == 0
