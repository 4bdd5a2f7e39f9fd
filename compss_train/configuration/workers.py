"""Which workers to declare: on this machine, or one on each of some hosts."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from loky import cpu_count

from compss_train.configuration.node import Node
from compss_train.configuration.ports import FIRST_PORT, PORTS


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
