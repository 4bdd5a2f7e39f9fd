"""A real SLURM cluster of two nodes on this machine, for tests."""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.helpers.waiting import wait_until

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "unshare", "nsenter", "ip")
NAMESPACES = ("--mount", "--net", "--uts", "--pid")
DONE = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"}


def skip_without_slurm(programs: Sequence[str] = ()) -> None:
    """Skip a test where no cluster can be made, or one of its own programs is missing."""
    missing = [program for program in (*PROGRAMS, *programs) if shutil.which(program) is None]
    if missing:
        pytest.skip(f"needs SLURM: there is no {', '.join(missing)} on the PATH")
    if os.geteuid() != 0:
        pytest.skip("needs root: the nodes have networks and mounts of their own")
    if (os.cpu_count() or 1) < 2:
        pytest.skip("needs two cores")


class SlurmCluster:
    """Two nodes of some cores; all of it in a folder, which the nodes share.

    Jobs write ``compss-JOB.out`` and ``compss-JOB.err`` there. Nodes may have more cores in the
    eyes of SLURM than this machine has.
    """

    def __init__(
        self, folder: Path, environment: dict[str, str] | None = None, *, cpus: int = 2
    ) -> None:
        self.folder = folder
        self.environment = {"SLURM_CONF": f"{folder}/slurm.conf", **(environment or {})}
        script = Path(__file__).with_name("slurm_cluster.sh")
        isolation = [*NAMESPACES, "--fork", "--kill-child", "--mount-proc"]
        with (folder / "output.txt").open("w") as output:
            self.process = subprocess.Popen(
                ["unshare", *isolation, str(script), str(folder), str(cpus)],
                stdout=output,
                stderr=output,
                env={**os.environ, **self.environment},
            )
        wait_until(lambda: (folder / "ready").exists() or self.process.poll() is not None)
        assert self.process.poll() is None, (folder / "output.txt").read_text()
        (self.root,) = psutil.Process(self.process.pid).children()

    def run(self, *command: object) -> str:
        """Run a program in the cluster, on neither node, and return its output."""
        inside = ["nsenter", f"--target={self.root.pid}", *NAMESPACES]
        settings = [f"{name}={value}" for name, value in self.environment.items()]
        words = [*inside, "env", f"--chdir={self.folder}", *settings, *map(str, command)]
        return subprocess.run(
            words, check=True, timeout=60, text=True, stdout=subprocess.PIPE
        ).stdout

    def wait(self, job: str, states: set[str], seconds: float = 200) -> str:
        """Wait for a state of a job, and return it."""
        said = lambda: f"{self.state(job)}: {self.output(job)}"  # noqa: E731
        wait_until(lambda: self.state(job) in states, seconds, every=0.2, said=said)
        return self.state(job)

    def restarts(self, job: str) -> int:
        """Return how often a job was queued again."""
        return int(re.search(r"Restarts=(\d+)", self.run("scontrol", "show", "job", job))[1])

    def await_restart(self, job: str, count: int = 1, seconds: float = 200) -> None:
        """Wait until a job was queued again so often, and let it start soon."""
        said = lambda: f"{self.state(job)}: {self.output(job)}"  # noqa: E731
        wait_until(lambda: self.restarts(job) == count, seconds, every=0.2, said=said)

        def is_pending() -> bool:
            return self.state(job) == "PENDING"

        def has_started() -> bool:
            if is_pending():
                # SLURM waits for two minutes otherwise, from the end of all steps on. Nodes refuse
                # a job in the second in which it ended there.
                self.run("scontrol", "update", f"jobid={job}", "StartTime=now+4")
                with suppress(TimeoutError):
                    wait_until(lambda: not is_pending(), 10, every=0.2)
            return self.state(job) in {"RUNNING", *DONE}

        wait_until(has_started, seconds, every=0.2, said=said)

    def state(self, job: str) -> str:
        """Return the state of a job in SLURM's words."""
        return re.search(r"JobState=(\w+)", self.run("scontrol", "show", "job", job))[1]

    def output(self, job: str) -> str:
        """Return what a job has printed."""
        return "".join(path.read_text() for path in sorted(self.folder.glob(f"compss-{job}.*")))

    def end(self) -> None:
        """End everything: what the script has started, and the control groups of SLURM."""
        self.process.kill()
        self.process.wait(30)
        for group in sorted(Path("/sys/fs/cgroup").glob("*/slurm_node[12]/**"), reverse=True):
            with suppress(OSError):
                group.rmdir()
