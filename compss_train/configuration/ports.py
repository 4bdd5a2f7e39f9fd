"""The ports that COMPSs's workers listen on."""

from __future__ import annotations

import random
import socket

# COMPSs's master takes the first free port from 43000 to 44000: workers start above it. A worker whose port is
# taken costs half a minute before the next one is tried, and a worker listens on all addresses of its machine: each
# has ports of its own.
FIRST_PORT = 44001
PORTS = 10
LAST_PORT = 65535


def free_first_port(count: int) -> int:
    """Return the first of enough ports in a row for ``count`` workers here, on which nobody listens.

    The search starts anywhere: runs that start at the same time must not take the same ones, as the workers of one
    would then be asked by the coordinator of the other.
    """
    needed = count * PORTS
    for _ in range(100):
        first = random.randrange(FIRST_PORT, LAST_PORT - needed)
        if all(_is_free(port) for port in range(first, first + needed)):
            return first
    raise OSError(f"there are no {needed} free ports in a row above {FIRST_PORT}; name the first with --first-port")


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        # As Java does: a port whose last connections are still closing is free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError:
            return False
        return True
