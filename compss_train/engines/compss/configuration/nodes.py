"""A worker of COMPSs as the two files are to declare it."""

from __future__ import annotations

import os
import random
import shutil
import socket
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loky import cpu_count

# COMPSs's master takes the first free port from 43000 to 44000: workers start above it. A worker whose port is
# taken costs half a minute before the next one is tried, and a worker listens on all addresses of its machine: each
# has ports of its own.
FIRST_PORT = 44001
PORTS = 10
LAST_PORT = 65535
LOWEST_PORT = 10_000
"""Services that have a number of their own lie below."""
OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""Where Linux says which ports it gives to outgoing connections."""


@dataclass(frozen=True)
class Node:
    """One worker of COMPSs: the host that it is started on by ssh, what it may use, and its first port."""

    name: str
    units: int
    gpus: int = 0
    first_port: int = FIRST_PORT

    def __post_init__(self) -> None:
        if not self.name or self.name != self.name.strip():
            raise ValueError(f"a node needs the name of a host, not {self.name!r}")
        if self.units < 1:
            raise ValueError(f"units={self.units} for {self.name}: give at least 1, most often its physical cores")
        if self.gpus < 0:
            raise ValueError(f"gpus={self.gpus} for {self.name}: give 0 or more")
        if not 1024 <= self.first_port <= LAST_PORT - PORTS:
            raise ValueError(
                f"{self.name} would listen on port {self.first_port}; ports must lie between 1024 and {LAST_PORT}: "
                "choose another first port, or fewer nodes"
            )

    @property
    def last_port(self) -> int:
        """The last of the ports that the worker may listen on."""
        return self.first_port + PORTS - 1


def free_first_port(count: int) -> int:
    """Return the first of enough ports in a row for ``count`` processes of COMPSs here, on which nobody listens.

    The search starts anywhere: runs that start at the same time must not take the same ones, as the workers of one
    would then be asked by the coordinator of the other. Ports of outgoing connections are left out, as any of them
    may be taken between now and the start.
    """
    needed = count * PORTS
    places = [first for low, high in _for_listening() for first in range(low, high - needed + 2)]
    for _ in range(100 if places else 0):
        first = random.choice(places)
        if all(_is_free(port) for port in range(first, first + needed)):
            return first
    raise OSError(f"there are no {needed} free ports in a row; name the first with --first-port")


def _for_listening() -> list[tuple[int, int]]:
    """Return the ranges of ports, ends included, that no outgoing connection gets."""
    try:
        low, high = map(int, OUTGOING.read_text().split())
    except (OSError, ValueError):
        return [(FIRST_PORT, LAST_PORT)]
    return [(LOWEST_PORT, low - 1), (max(high + 1, LOWEST_PORT), LAST_PORT)]


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        # As Java does: a port whose last connections are still closing is free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError:
            return False
        return True


def physical_cores() -> int:
    """Return the physical cores that this process may use (affinity and container limits count)."""
    with warnings.catch_warnings():
        # Where the physical cores cannot be told apart, loky warns and counts all of them.
        warnings.simplefilter("ignore")
        return int(cpu_count(only_physical_cores=True))


def loopback_nodes(
    count: int, units: int | None = None, gpus: int = 0, first_port: int = FIRST_PORT
) -> tuple[Node, ...]:
    """Return ``count`` workers on this machine: one on localhost, more on 127.0.0.1, 127.0.0.2 and so on.

    ``units`` is what each of them may use, by default its share of the physical cores.
    """
    if not 1 <= count <= 254:
        raise ValueError(f"nodes={count}: give 1 to 254, the loopback addresses from 127.0.0.1 on")
    if gpus and count > 1:
        raise ValueError(
            f"gpus={gpus} with nodes={count}: every worker on this machine would count its GPUs from the first, "
            "so that all train on the same ones; use one node with all the GPUs"
        )
    share = max(1, physical_cores() // count) if units is None else units
    names = ["localhost"] if count == 1 else [f"127.0.0.{index}" for index in range(1, count + 1)]
    return tuple(Node(name, share, gpus, first_port + index * PORTS) for index, name in enumerate(names))


def host_nodes(
    hosts: Sequence[str], units: int | None = None, gpus: int = 0, first_port: int = FIRST_PORT
) -> tuple[Node, ...]:
    """Return one worker on each of the hosts, with the cores of this machine where ``units`` is not given."""
    if not hosts or len(set(hosts)) < len(hosts):
        raise ValueError(f"hosts={','.join(hosts)!r}: give at least one host, and each of them once")
    return tuple(Node(host, physical_cores() if units is None else units, gpus, first_port) for host in hosts)


DEFAULT_HOME = Path("/opt/COMPSs")


def compss_home() -> Path | None:
    """Return where COMPSs is installed: ``COMPSS_HOME``, or where ``runcompss`` lies; else ``None``."""
    if home := os.environ.get("COMPSS_HOME"):
        return Path(home)
    if (runcompss := shutil.which("runcompss")) is None:
        return None
    scripts = Path(runcompss).resolve().parents
    return scripts[3] if len(scripts) > 3 and (scripts[3] / "Runtime").is_dir() else None


def presumed_home() -> Path:
    """Return where COMPSs is installed, or where it would be by default."""
    return compss_home() or DEFAULT_HOME
