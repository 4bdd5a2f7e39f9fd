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
from contextlib import ExitStack, contextmanager, suppress
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from compss_train.engines import RayEngine
from tests.helpers.processes import ROOT, session
from tests.helpers.waiting import LIMIT

STARTS = 3
"""Attempts to start a node by hand: Ray gives up after 30 s, which a busy machine may need."""
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
    head = ["--head", f"--port={port}", "--include-dashboard=false", *head_options]
    with ExitStack() as nodes:
        for number, count in enumerate(cpus):
            role = [f"--address={address}"] if number else head
            command = [*start, f"--num-cpus={count}", *role]
            nodes.enter_context(started_node(command, environment))
        yield {**environment, "RAY_ADDRESS": address}


@contextmanager
def started_node(command: Sequence[str], environment: dict[str, str]) -> Iterator[None]:
    """Run ``ray start`` until a node has started, and end the node.

    Its temporary folder is its own, as a node removes the folders of jobs that it has done with. It
    has a short name, as those of sockets are limited.
    """
    with ExitStack() as attempts:
        for attempt in range(STARTS):
            folder = TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True)
            process = subprocess.Popen(
                [*command, f"--temp-dir={attempts.enter_context(folder)}"],
                env=environment,
                start_new_session=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            attempts.callback(_kill_session, process.pid)
            printed, _ = process.communicate(timeout=LIMIT)
            if process.returncode == 0:
                break
            _kill_session(process.pid)
            assert "timed out" in printed, printed
            assert attempt + 1 < STARTS, printed
        yield


def _kill_session(leader: int) -> None:
    for pid in session(leader):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class SharedRayEngine(RayEngine):
    """An engine that tests share: fits that fail leave it to them."""

    def shutdown(self, *, kill: bool = False) -> None:
        raise AssertionError("nobody but its maker is to end it")

    def end(self) -> None:
        super().shutdown(kill=True)
