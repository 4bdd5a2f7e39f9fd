"""Stopping: how a fit ends before its last round, for a callback, for the time that it may take, or for SIGTERM."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from compss_train._utils.validation import check_seconds

MAX_TIME = "max_time"
SIGTERM = "SIGTERM"

TICK = 0.2
"""Seconds after which a fit that waits for something looks whether it is to stop at once."""

TERMINATED = 128 + signal.SIGTERM
"""Exit code of a process that SIGTERM ends, as shells give it."""


class Stopping:
    """Whether one fit is to stop, why, and whether at once.

    A round's end is a good place to stop, so that is what a fit does: before a round for which ``max_time`` leaves
    too little, as far as earlier ones tell. When time is up all the same, or SIGTERM comes, it is ``urgent``: the
    round under way is given up.
    """

    def __init__(
        self, max_time: float | timedelta | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.clock = clock
        """Seconds, as ``time.monotonic``: ``max_time`` and the duration of rounds are measured with it."""
        seconds = None if max_time is None else seconds_of(max_time)
        self._deadline = None if seconds is None else clock() + seconds
        self._longest = 0.0
        self._terminated = False
        self._reason: str | None = None

    @property
    def reason(self) -> str | None:
        """Why the fit is to stop, ``None`` where it is not."""
        if self._terminated:
            return SIGTERM
        return self._reason or (MAX_TIME if self._is_over() else None)

    @property
    def urgent(self) -> bool:
        """Whether there is no time for the round under way."""
        return self._terminated or self._is_over()

    @property
    def terminated(self) -> bool:
        """Whether the process is to end."""
        return self._terminated

    def request(self, reason: str) -> None:
        """Have the fit stop; the first reason stays."""
        self._reason = self._reason or reason

    def after_round(self, seconds: float) -> None:
        """Take note of how long a round took, and stop where another one would take too long."""
        self._longest = max(self._longest, seconds)
        if self._deadline is not None and self.clock() + self._longest > self._deadline:
            self.request(MAX_TIME)

    def _is_over(self) -> bool:
        return self._deadline is not None and self.clock() > self._deadline

    @contextmanager
    def on_sigterm(self) -> Iterator[None]:
        """Stop on SIGTERM, unless the program has a handler of its own or this is not the main thread.

        Raises ``SystemExit`` at the end where it has come, however late.
        """
        in_main = threading.current_thread() is threading.main_thread()
        if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            yield
            return
        signal.signal(signal.SIGTERM, self._terminate)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self._terminated:
            raise SystemExit(TERMINATED)

    def _terminate(self, number: int, frame: Any) -> None:
        self._terminated = True


def seconds_of(max_time: float | timedelta) -> float:
    """Return a time as seconds; raise ``ValueError`` unless it is above 0."""
    return check_seconds("max_time", max_time.total_seconds() if isinstance(max_time, timedelta) else max_time)
