"""Attendance: whether a task that was submitted is there, has been lost, or never came."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from compss_train.online.director import Peer

RETURN_SECONDS = 120.0
"""How long a task whose process died may take to be back, where an engine cannot say that it is lost."""


@dataclass(eq=False)
class Attendance:
    """Of one task."""

    peer: Peer | None = None
    """Its connection, while there is one."""
    away_since: float = field(default_factory=time.monotonic)
    came: bool = False

    def arrive(self, peer: Peer) -> None:
        """Note that it is there."""
        self.peer, self.came = peer, True

    def leave(self) -> None:
        """Note that its connection broke."""
        self.peer, self.away_since = None, time.monotonic()

    @property
    def is_lost(self) -> bool:
        """Whether it was there and has been away too long to come back."""
        return self.came and self.peer is None and time.monotonic() - self.away_since > RETURN_SECONDS
