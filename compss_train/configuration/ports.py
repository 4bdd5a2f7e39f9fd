"""The ports that COMPSs's workers listen on."""

from __future__ import annotations

import random
import socket
from pathlib import Path

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
