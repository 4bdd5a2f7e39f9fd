"""Where tasks on other nodes reach this machine."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from compss_train.configuration import DeclaredNode
from compss_train.engines.this_machine import LOOPBACK, is_loopback

_ELSEWHERE = ("10.255.255.255", 1)
"""An address that is nobody's: nothing is sent there, it only makes the system choose a way out."""


def address_for(nodes: Sequence[DeclaredNode]) -> str:
    """Return the address at which tasks on these nodes reach this machine."""
    return LOOPBACK if nodes and all(is_loopback(node.name) for node in nodes) else outward_address()


def outward_address() -> str:
    """Return this machine's address on the default route; without one, that of its name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE)
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostbyname(socket.gethostname())
