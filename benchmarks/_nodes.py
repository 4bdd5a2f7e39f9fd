"""Nodes of an emulated cluster: network namespaces of this machine, whose links the kernel limits.

They need root and iproute2.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from _applications import Runtime, call
from _common import HERE
from _quotas import Quota

PREFIX = "compss_train-"
"""Beginning of the names of namespaces; the number of the process that made them follows."""
LINK = "eth0"
"""A node's interface."""
BURST_SECONDS = 0.001
"""What a link sends at once after a pause, in seconds of its rate."""
WAIT = "50ms"
"""How long a link lets a packet wait before it drops it."""
PACKET = 2**14
"""The most bytes that the kernel hands to a link at once.

With its own 64 KiB, gradients of 0.1 MB would hardly feel a limit of 100 Mbit/s.
"""
LEAST_BURST = 2**15
"""The least bytes that a link sends at once after a pause."""
MODULES = (HERE, HERE.parent, HERE.parent / "apps")
"""Where programs in the nodes look for modules: the language model is one of ``apps/``."""
RAY_PORT = 6379
HEAD = ("--head", f"--port={RAY_PORT}", "--include-dashboard=false")
RAY_START = (sys.executable, "-m", "ray.scripts.scripts", "start", "--disable-usage-stats")


def skip_without_network() -> None:
    """End this process, well, where no network can be made."""
    missing = [program for program in ("ip", "tc", "nsenter") if shutil.which(program) is None]
    if not missing and os.geteuid() == 0:
        return
    hint = "try sudo"
    if missing:
        hint = (
            f"there is no {' and no '.join(missing)} on the PATH; install iproute2 and util-linux"
        )
    print(
        "SKIPPED: needs root and iproute2, to make network namespaces and to limit their "
        f"links: {hint}"
    )
    sys.exit(0)


class Network:
    """Nodes with a network each, whose links meet in a switch; all of them namespaces."""

    def __init__(self, nodes: int) -> None:
        self.switch = f"{PREFIX}{os.getpid()}-switch"
        self.nodes = [f"{PREFIX}{os.getpid()}-{number}" for number in range(nodes)]
        # From the range for benchmarks.
        self.addresses = [f"198.18.0.{number + 1}" for number in range(nodes)]
        self._ports = [f"port{number}" for number in range(nodes)]
        self.quota = Quota()
        """Of each node's cores: see ``share_cores``."""

    def make(self) -> None:
        """Make the namespaces, the switch (a bridge) and the links.

        Those that a killed process has left are removed.
        """
        for name in _run("ip", "netns", "list").split():
            process = name.removeprefix(PREFIX).split("-")[0]
            if name.startswith(PREFIX) and not Path("/proc", process).exists():
                _remove(name)
        for name in (self.switch, *self.nodes):
            _run("ip", "netns", "add", name)
            _run("ip", "-netns", name, "link", "set", "lo", "up")
        _run("ip", "-netns", self.switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-netns", self.switch, "link", "set", "bridge", "up")
        for port, node, address in zip(self._ports, self.nodes, self.addresses, strict=True):
            other_end = ("type", "veth", "peer", "name", port, "netns", self.switch)
            _run("ip", "-netns", node, "link", "add", LINK, *other_end)
            _run("ip", "-netns", node, "link", "set", LINK, "gso_max_size", str(PACKET))
            _run("ip", "-netns", self.switch, "link", "set", port, "master", "bridge", "up")
            _run("ip", "-netns", node, "address", "add", f"{address}/24", "dev", LINK)
            _run("ip", "-netns", node, "link", "set", LINK, "up")
            # The default route tells programs their address.
            _run("ip", "-netns", node, "route", "add", "default", "dev", LINK)

    def within(self, number: int) -> list[str]:
        """Return the words before a command that runs in a node."""
        words = ["ip", "netns", "exec", self.nodes[number]]
        if self.quota.groups:
            joining = f'echo $$ > {self.quota.groups[number]}/cgroup.procs && exec "$@"'
            words = ["sh", "-c", joining, "sh", *words]
        return words

    def share_cores(self, cores_of_node: float | None = None) -> None:
        """Let ``quota.held()`` give every node so many cores.

        By default all get the same part of them, where there are fewer cores than nodes.
        """
        cores = len(os.sched_getaffinity(0))
        if cores_of_node is None and cores >= len(self.nodes):
            return
        try:
            self.quota = Quota.of(self.nodes, cores_of_node or cores / len(self.nodes))
        except OSError as error:
            print(
                f"{len(self.nodes)} nodes share {cores} cores as they like: no quota can be "
                f"set ({error})"
            )
        else:
            print(
                f"{len(self.nodes)} nodes on {cores} cores: each has a quota of "
                f"{self.quota.cores:.2f} cores while it is timed"
            )

    def limit(self, rate: float) -> None:
        """Give both directions of all links a rate in Mbit/s."""
        ends = [(self.switch, port) for port in self._ports]
        ends += [(node, LINK) for node in self.nodes]
        for namespace, interface in ends:
            queue = ("tc", "-netns", namespace, "qdisc")
            # Fails where there is none, as at first.
            subprocess.run([*queue, "delete", "dev", interface, "root"], capture_output=True)
            if rate:
                burst = max(LEAST_BURST, int(BURST_SECONDS * rate * 1e6 / 8))
                bucket = ("tbf", "rate", f"{rate:g}mbit", "burst", str(burst), "latency", WAIT)
                _run(*queue, "add", "dev", interface, "root", "handle", "1:", *bucket)

    def plug(self, number: int, state: str) -> None:
        """Set a node's port in the switch ``up`` or ``down``, like a cable."""
        _run("ip", "-netns", self.switch, "link", "set", self._ports[number], state)

    def end_processes(self) -> None:
        """Kill all processes in the nodes."""
        for node in self.nodes:
            _kill(node)

    def remove(self) -> None:
        """Remove all that was made."""
        for name in (*self.nodes, self.switch):
            _remove(name)
        self.quota.remove()


def link_bytes(switch: str) -> tuple[list[float], list[float]]:
    """Return how many bytes each node has sent and received; a switch's ports count them."""
    command = ("ip", "-json", "-stats", "-netns", switch, "link", "show", "type", "veth")
    ports = sorted(json.loads(_run(*command)), key=lambda port: str(port["ifname"]))
    sent = [float(port["stats64"]["rx"]["bytes"]) for port in ports]
    received = [float(port["stats64"]["tx"]["bytes"]) for port in ports]
    return sent, received


def _run(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if result.returncode:
        raise RuntimeError(
            f"{' '.join(command)} ended with {result.returncode}: {result.stdout}{result.stderr}"
        )
    return result.stdout


def _kill(name: str) -> None:
    """Kill the processes in a namespace, and those that they start meanwhile."""
    while processes := _processes_in(name):
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def _processes_in(name: str) -> list[int]:
    command = ["ip", "netns", "pids", name]
    result = subprocess.run(command, capture_output=True, text=True)
    return [int(process) for process in result.stdout.split()]


def _remove(name: str) -> None:
    _kill(name)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True)


@contextmanager
def nodes_of(number: int) -> Iterator[Network]:
    """Yield a network, and remove it at the end: also after an error, Ctrl-C or SIGTERM."""
    network = Network(number)

    def interrupted(signal_number: int, _: Any) -> None:
        network.end_processes()  # for threads wait for them
        raise KeyboardInterrupt

    signals = (signal.SIGINT, signal.SIGTERM)
    for end in signals:
        signal.signal(end, interrupted)
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, MODULES), before])
    try:
        network.make()
        yield network
    except KeyboardInterrupt:
        sys.exit("interrupted: its namespaces are removed")
    except RuntimeError as error:
        sys.exit(str(error))
    finally:
        for end in signals:
            signal.signal(end, signal.SIG_IGN)
        network.remove()


Fit = Callable[..., Any]
"""Calls a function of ours in the first node, on the engine."""


@contextmanager
def ray_in(network: Network, *options: str) -> Iterator[Fit]:
    """Start a node of Ray with one CPU in each node, the head with these options in the first.

    The network's end ends them.
    """
    head = f"{network.addresses[0]}:{RAY_PORT}"
    tokens = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    os.environ.update({**tokens, "RAY_worker_niceness": "0"})  # as nice as peers
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for number, address in enumerate(network.addresses):
            role = [f"--address={head}"] if number else [*HEAD, *options]
            node = [f"--node-ip-address={address}", f"--temp-dir={folder}/{number}", "--num-cpus=1"]
            _run(*network.within(number), *RAY_START, *role, *node)
        yield partial(call, within=[*network.within(0), "env", f"RAY_ADDRESS={head}"])
        network.end_processes()


@contextmanager
def compss_in(network: Network) -> Iterator[Fit]:
    """Let COMPSs start a worker with one unit in each node, by ssh.

    Each fit is an application of its own.
    """
    sshd = shutil.which("sshd") or "/usr/sbin/sshd"
    for number, address in enumerate(network.addresses):
        _run(*network.within(number), sshd, "-o", f"ListenAddress={address}", "-o", "PidFile=none")
    runtime = Runtime(1, hosts=network.addresses, pythonpath=[*map(str, MODULES)])
    yield partial(call, runtime=runtime, within=network.within(0))
