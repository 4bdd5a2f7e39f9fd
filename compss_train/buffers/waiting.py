"""Waiting as ``queue.Queue`` does it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def deadline(block: bool, timeout: float | None) -> float | None:
    """Return the time of ``time.monotonic`` at which to give up, ``None`` for never."""
    if not block:
        return 0.0
    if timeout is None:
        return None
    if timeout < 0:
        raise ValueError(f"timeout={timeout!r}: give seconds from 0, or None to wait without end")
    return time.monotonic() + timeout


def wait(condition: threading.Condition, reached: Callable[[], bool], until: float | None) -> None:
    """Return when ``reached`` is true or the time ``until`` has come; ``condition``'s lock is held."""
    if not reached():
        condition.wait_for(reached, None if until is None else max(0.0, until - time.monotonic()))
