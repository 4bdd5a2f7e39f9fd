"""Nodes that tasks run on: the resources of each, and the address at which tasks reach this machine.

Imports no torch, so that the doctor can use it.
"""

import ipaddress
import socket
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from loky import cpu_count

LOOPBACK = "127.0.0.1"
"""The loopback address."""

_UNUSED_ADDRESS = ("10.255.255.255", 1)
"""Nothing is sent to it; connecting a datagram socket only makes the system choose a route."""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine that runs tasks, or a part of it."""

    name: str
    """Its host name or address."""
    cpus: int
    """Computing units, one for each thread of a task."""
    gpus: int = 0


def cores() -> int:
    """Return the cores that this process may use (affinity and container limits count)."""
    return int(cpu_count())


def physical_cores() -> int:
    """Return the number of physical cores that this process may use, within its affinity and container limits."""
    with warnings.catch_warnings():
        # If loky cannot determine the physical cores, it warns and counts the logical ones.
        warnings.simplefilter("ignore")
        return int(cpu_count(only_physical_cores=True))


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is the loopback interface's."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a host name
        return host == "localhost"


def is_local(name: str) -> bool:
    """Return whether a node is this machine under one of its names."""
    host = socket.gethostname()
    return name in {"localhost", host, host.split(".")[0]} or name.startswith("127.")


def address_for(nodes: Sequence[Node]) -> str:
    """Return the address at which tasks on these nodes reach this machine.

    It is the loopback address if all of them are here, else this machine's address on the default route or, without
    one, the address of its host name.
    """
    if nodes and all(is_loopback(node.name) for node in nodes):
        return LOOPBACK
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_UNUSED_ADDRESS)
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostbyname(socket.gethostname())
