"""A fit on a real SLURM cluster, whose two nodes are on this machine; skipped where one cannot be
made.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from compss_train.model import parameters
from tests.compss.inside.resumed import fit
from tests.compss.test_fits import INSIDE, OPTIONS
from tests.helpers.models import assert_same_bits
from tests.helpers.processes import ROOT
from tests.helpers.waiting import wait_until

PROGRAMS = ("enqueue_compss", "slurmctld", "slurmd", "sbatch", "munged", "unshare", "nsenter", "ip")
OWN_NAMESPACES = ("--mount", "--net", "--uts", "--pid")
DONE = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"}


class SlurmCluster:
    """Two nodes with the configuration of docs/slurm.md; all of it in a folder, which the nodes
    share.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = os.environ.get("COMPSS_HOME") or str(
            Path(shutil.which("enqueue_compss")).parents[3]
        )
        own = [*OWN_NAMESPACES, "--fork", "--kill-child", "--mount-proc"]
        command = [
            "unshare",
            *own,
            str(Path(__file__).with_name("slurm_cluster.sh")),
            str(folder),
            "2",
        ]
        with (folder / "output.txt").open("w") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, env={**os.environ, "COMPSS_HOME": self.home}
            )
        wait_until(lambda: (folder / "ready").exists() or self.process.poll() is not None, 30)
        assert self.process.poll() is None, (folder / "output.txt").read_text()
        (self.root,) = psutil.Process(self.process.pid).children()
        self.configuration = folder / "cluster.cfg"
        self.configuration.write_text(
            f"{documented_configuration()}\nDEFAULT_CPUS_PER_NODE=2\nDEFAULT_WORKER_IN_MASTER_CPUS=2\n"
            f"LOCAL_DISK_PREFIX={folder}/local\nDEFAULT_JVM_WORKERS=-Xmx1g\nDEFAULT_JVM_WORKER_IN_MASTER=-Xmx1g\n"
        )

    def run(self, *command: object) -> str:
        """Run a program in the cluster, on neither node, and return its output."""
        inside = ["nsenter", f"--target={self.root.pid}", *OWN_NAMESPACES]
        settings = [f"SLURM_CONF={self.folder}/slurm.conf", f"COMPSS_HOME={self.home}"]
        words = [*inside, "env", f"--chdir={self.folder}", *settings, *map(str, command)]
        return subprocess.run(
            words, check=True, timeout=60, text=True, stdout=subprocess.PIPE
        ).stdout

    def submit(self, app: str, *args: object, flags: tuple[str, ...] = ()) -> str:
        """Submit an application of ``tests/compss/inside`` as users do, and return the number of
        the job.
        """
        settings = (f"--sc_cfg={self.configuration}", f"--log_dir={self.folder}", "--exec_time=5")
        python = f"--python_interpreter={sys.executable}"
        said = self.run(
            ROOT / "runcompss" / "slurm.sh", *settings, python, *flags, INSIDE / app, *args
        )
        return re.search(r"Submitted batch job (\d+)", said)[1]

    def wait(self, job: str, states: set[str], seconds: float = 200) -> str:
        """Wait for a state of a job, and return it."""
        said = lambda: f"{self.state(job)}: {self.output(job)}"  # noqa: E731
        wait_until(lambda: self.state(job) in states, seconds, every=0.2, said=said)
        return self.state(job)

    def state(self, job: str) -> str:
        return re.search(r"JobState=(\w+)", self.run("scontrol", "show", "job", job))[1]

    def output(self, job: str) -> str:
        return "".join(path.read_text() for path in sorted(self.folder.glob(f"compss-{job}.*")))

    def end(self) -> None:
        """End everything: what the script has started ends with it, and SLURM's control groups are
        empty then.
        """
        self.process.kill()
        self.process.wait(30)
        for group in sorted(Path("/sys/fs/cgroup").glob("*/slurm_node[12]/**"), reverse=True):
            with suppress(OSError):
                group.rmdir()


def documented_configuration() -> str:
    text = (ROOT / "docs" / "slurm.md").read_text()
    return re.search(r"^```sh\n(QUEUE_SYSTEM=.*?)^```", text, re.MULTILINE | re.DOTALL)[1]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
        pytest.skip(f"needs COMPSs and SLURM: there is no {', '.join(missing)} on the PATH")
    if os.geteuid() != 0:
        pytest.skip("needs root: the nodes have networks and mounts of their own")
    if (os.cpu_count() or 1) < 2:
        pytest.skip("needs two cores")
    cluster = SlurmCluster(tmp_path_factory.mktemp("slurm"))
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


@pytest.mark.timeout(500)
def test_a_job_that_slurm_warns_is_queued_again_and_resumes(cluster):
    folder = cluster.folder / "resumed"
    # In round 3 the job's own batch shell gets the signal that SLURM sends when the time is nearly
    # up.
    job = cluster.submit(
        "resumed.py", folder, 3, "batch", flags=("--requeue=1", f"--pythonpath={ROOT}")
    )
    wait_until(lambda: "Restarts=1" in cluster.run("scontrol", "show", "job", job), 200)
    assert "fit interrupted by SIGTERM; last complete round: 3" in cluster.output(job)
    # SLURM waits for two minutes otherwise. Nodes refuse a job in the second in which it ended
    # there.
    cluster.run("scontrol", "update", f"jobid={job}", "StartTime=now+5")
    assert cluster.wait(job, DONE) == "COMPLETED", cluster.output(job)
    assert "round-000003 on compss" in cluster.output(job)
    assert_same_bits(
        parameters.load(folder / "trained.npz"), fit(cluster.folder / "apart", "serial", [])[0]
    )
