"""``Stopping`` ends a fit before its last round: for a callback, a time limit or SIGTERM."""

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
"""Seconds between two checks whether a waiting fit must stop at once."""

SAVING_SHARE = 0.05
"""Share of a program's remaining time that a fit leaves for work after it."""
LONGEST_SAVING = 60.0
"""Maximum number of seconds that it leaves."""

TERMINATED = 128 + signal.SIGTERM
"""Exit code of a process ended by SIGTERM, as in shells."""


def status_of(stopped: str | None, error: BaseException | None = None) -> str:
    """Return how a fit has ended, which has ``stopped`` for a reason, if any, or with an error.

    It is ``"complete"``, ``"stopped by ..."``, ``"stopped: ..."`` or ``"failed: ..."``.
    """
    if isinstance(error, KeyboardInterrupt):
        return "stopped by Ctrl-C"
    if isinstance(error, SystemExit) and error.code == TERMINATED:
        return "stopped by SIGTERM"
    if error is not None:
        line = (str(error).splitlines() or [""])[0]
        return f"failed: {type(error).__name__}" + (f": {line[:300]}" if line else "")
    return "complete" if stopped is None else f"stopped: {stopped}"


class Stopping:
    """Whether one fit must stop, why, and whether at once.

    A fit stops at the end of a round if possible: before a round that would exceed ``max_time``,
    judging by the longest round so far. If the time is up during a round, or on SIGTERM, stopping
    is ``urgent``: the current round is cancelled. ``time_left`` is the number of seconds until the
    whole program is ended, ``None`` for no limit: the fit stops a little earlier, as with
    ``max_time``.
    """

    def __init__(
        self,
        max_time: float | timedelta | None = None,
        clock: Callable[[], float] = time.monotonic,
        time_left: float | None = None,
    ) -> None:
        self.clock = clock
        """A clock in seconds, by which ``max_time`` and the duration of rounds are measured."""
        if isinstance(max_time, timedelta):
            max_time = max_time.total_seconds()
        limits = []
        if max_time is not None:
            limits.append(check_seconds("max_time", max_time))
        if time_left is not None:
            limits.append(time_left - min(SAVING_SHARE * time_left, LONGEST_SAVING))
        self._deadline = clock() + min(limits) if limits else None
        self._longest = 0.0
        """How many seconds the longest round took."""
        self._terminated = False
        self._reason: str | None = None

    @property
    def reason(self) -> str | None:
        """Why the fit must stop, or ``None`` if it need not."""
        if self._terminated:
            return SIGTERM
        if self._reason is None and self.urgent:
            return MAX_TIME
        return self._reason

    @property
    def urgent(self) -> bool:
        """Whether the current round must be cancelled."""
        return self._terminated or (self._deadline is not None and self.clock() > self._deadline)

    def request(self, reason: str) -> None:
        """Make the fit stop; the first reason counts."""
        if self._reason is None:
            self._reason = reason

    def after_round(self, seconds: float) -> None:
        """Record the duration of a round, and stop if another one would exceed the time limit."""
        self._longest = max(self._longest, seconds)
        if self._deadline is not None and self.clock() + self._longest > self._deadline:
            self.request(MAX_TIME)

    @contextmanager
    def on_sigterm(self) -> Iterator[None]:
        """Stop on SIGTERM, unless the program has its own handler or this is not the main thread.

        Raises ``SystemExit`` at the end of the block if the signal was received.
        """
        is_main_thread = threading.current_thread() is threading.main_thread()
        handler = signal.getsignal(signal.SIGTERM)
        # A program that has called ray.init has Ray's handler, which is not its own.
        is_programs_own = handler is not signal.SIG_DFL and not _is_of_ray(handler)
        if not is_main_thread or is_programs_own:
            yield
            return
        signal.signal(signal.SIGTERM, self._terminate)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, handler)
        if self._terminated:
            raise SystemExit(TERMINATED)

    def _terminate(self, number: int, frame: Any) -> None:
        self._terminated = True


def _is_of_ray(handler: Any) -> bool:
    return (getattr(handler, "__module__", None) or "").startswith("ray.")
