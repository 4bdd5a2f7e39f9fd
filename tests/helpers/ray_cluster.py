"""A Ray cluster of two nodes on this machine, which asks for a token, and the engine on it that
tests share.
"""

import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from compss_train.engines import RayEngine
from tests.helpers.processes import ROOT, session
from tests.helpers.waiting import LIMIT

NODE = {"num_cpus": 2, "object_store_memory": 300_000_000, "include_dashboard": False}


@contextmanager
def two_nodes() -> Iterator[Any]:
    """Start a cluster of two nodes with two CPUs each, and join it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")
        # Processes stay between tests: to start one anew takes seconds of a core.
        patch.setenv("RAY_num_workers_soft_limit", "8")
        patch.setenv("RAY_idle_worker_killing_time_threshold_ms", "600000")
        import ray
        from ray._raylet import Config
        from ray.cluster_utils import Cluster

        Config.initialize("")  # reads the environment again
        cluster = Cluster(initialize_head=True, head_node_args=dict(NODE))
        try:
            cluster.add_node(**NODE)
            ray.init(address=cluster.address, logging_level="ERROR")
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def started_by_hand(
    *head_options: str, cpus: Sequence[int] = (1, 1), store: int = 100_000_000
) -> Iterator[dict[str, str]]:
    """Run ``ray start`` for nodes with so many CPUs, and yield the environment of a program that
    joins them. Each has an object store of ``store`` bytes.
    """
    port = free_port()
    address = f"127.0.0.1:{port}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(":"),
    }
    start = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--disable-usage-stats",
    ]
    start += [f"--object-store-memory={store}", "--min-worker-port=0", "--max-worker-port=0"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    leaders = []
    # In a folder with a short name, as those of sockets are limited.
    with TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder:
        head = [
            "--head",
            f"--port={port}",
            f"--temp-dir={folder}",
            "--include-dashboard=false",
            *head_options,
        ]
        try:
            for number, count in enumerate(cpus):
                role = [f"--address={address}"] if number else head
                process = subprocess.Popen(
                    [*start, f"--num-cpus={count}", *role],
                    env=environment,
                    start_new_session=True,
                    **pipes,
                )
                leaders.append(process.pid)
                printed, _ = process.communicate(timeout=LIMIT)
                assert process.returncode == 0, printed
            yield {**environment, "RAY_ADDRESS": address}
        finally:
            for pid in (pid for leader in leaders for pid in session(leader)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


class SharedRayEngine(RayEngine):
    """An engine that tests share: fits that fail leave it to them."""

    def shutdown(self, *, kill: bool = False) -> None:
        raise AssertionError("nobody but its maker is to end it")

    def end(self) -> None:
        super().shutdown(kill=True)
