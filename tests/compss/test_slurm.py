"""Fits on a real SLURM cluster of two nodes on this machine; skipped where one cannot be made."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from compss_train.model import parameters
from tests.compss.inside.resumed import fit
from tests.compss.test_fits import INSIDE, OPTIONS
from tests.helpers.models import assert_same_bits
from tests.helpers.processes import ROOT
from tests.helpers.slurm import DONE, SlurmCluster, skip_without_slurm


class CompssCluster(SlurmCluster):
    """A cluster with the configuration of docs/slurm.md."""

    def __init__(self, folder: Path) -> None:
        home = os.environ.get("COMPSS_HOME") or str(Path(shutil.which("enqueue_compss")).parents[3])
        super().__init__(folder, {"COMPSS_HOME": home})
        self.configuration = folder / "cluster.cfg"
        self.configuration.write_text(
            f"{documented_configuration()}\nDEFAULT_CPUS_PER_NODE=2\nDEFAULT_WORKER_IN_MASTER_CPUS=2\n"
            f"LOCAL_DISK_PREFIX={folder}/local\nDEFAULT_JVM_WORKERS=-Xmx1g\nDEFAULT_JVM_WORKER_IN_MASTER=-Xmx1g\n"
        )

    def submit(self, app: str, *args: object, flags: tuple[str, ...] = ()) -> str:
        """Submit an application of ``tests/compss/inside`` as users do; return the job's number."""
        settings = (f"--sc_cfg={self.configuration}", f"--log_dir={self.folder}", "--exec_time=5")
        python = f"--python_interpreter={sys.executable}"
        said = self.run(
            ROOT / "runcompss" / "slurm.sh", *settings, python, *flags, INSIDE / app, *args
        )
        return re.search(r"Submitted batch job (\d+)", said)[1]


def documented_configuration() -> str:
    text = (ROOT / "docs" / "slurm.md").read_text()
    return re.search(r"^```sh\n(QUEUE_SYSTEM=.*?)^```", text, re.MULTILINE | re.DOTALL)[1]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    skip_without_slurm(["enqueue_compss"])
    cluster = CompssCluster(tmp_path_factory.mktemp("slurm"))
    yield cluster
    cluster.end()


@pytest.mark.timeout(300)
def test_two_slurm_nodes_train_the_bits_of_one_process(cluster):
    job = cluster.submit(
        "fit.py", cluster.folder / "ours.json", *OPTIONS, flags=("--log_level=debug",)
    )
    assert cluster.wait(job, DONE) == "COMPLETED", cluster.output(job)
    plain = [
        sys.executable,
        str(INSIDE / "fit.py"),
        str(cluster.folder / "theirs.json"),
        *OPTIONS,
        "engine=serial",
    ]
    subprocess.run(plain, check=True, timeout=60)
    ours, theirs = (
        json.loads((cluster.folder / f"{name}.json").read_text()) for name in ("ours", "theirs")
    )
    assert ours["digest"] == theirs["digest"]
    assert ours["losses"] == theirs["losses"]
    log = (cluster.folder / ".COMPSs" / job / "runtime.log").read_text()
    assert set(re.findall(r"JOB_RESULT.*?file:///\S*/(node\d)/", log)) == {"node1", "node2"}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("signal", "minutes"), [("batch", 5), pytest.param("limit", 4, marks=pytest.mark.slow)]
)
def test_a_job_that_slurm_warns_is_queued_again_and_resumes(cluster, signal, minutes):
    """In round 3 its batch shell gets SLURM's signal, from ``scancel`` or as the time is up."""
    folder = cluster.folder / f"resumed-{signal}"
    flags = ("--requeue=1", f"--exec_time={minutes}", f"--pythonpath={ROOT}")
    job = cluster.submit("resumed.py", folder, 3, signal, flags=flags)
    cluster.await_restart(job, seconds=400)
    assert "fit interrupted by SIGTERM; last complete round: 3" in cluster.output(job)
    assert cluster.wait(job, DONE) == "COMPLETED", cluster.output(job)
    assert "round-000003 on compss" in cluster.output(job)
    assert_same_bits(
        parameters.load(folder / "trained.npz"),
        fit(cluster.folder / f"apart-{signal}", "serial", [])[0],
    )
