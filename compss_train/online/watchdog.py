"""A watchdog: ends this process where a simulation hangs, or goes on when nobody wants its samples."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from compss_train._utils.closing import Closable
from compss_train.online.stream import Stream

_TICK = 0.25
_GRACE = 2.0
"""Seconds that a simulation has to end by itself once training has ended, or to say that it hangs."""


class Watchdog(Closable):
    """Watches the main thread's ``computing()`` for one that takes longer than ``limit`` seconds, if any.

    The process ends, and the programs that it has started, since nothing else stops a solver that is deep in its
    own code: the engine starts another one.
    """

    def __init__(self, stream: Stream, limit: float | None) -> None:
        self._stream, self._limit = stream, limit
        self._until: float | None = None
        self._closed = threading.Event()
        self._watched = threading.get_ident()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._thread.start()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Mark what may not take longer."""
        if self._limit is None:
            yield
            return
        self._until = time.monotonic() + self._limit
        # For a solver that never lets another thread of Python run.
        faulthandler.dump_traceback_later(self._limit + _GRACE, exit=True, file=sys.__stderr__ or 2)
        try:
            yield
        finally:
            self._until = None
            faulthandler.cancel_dump_traceback_later()

    def _run(self) -> None:
        while not self._closed.wait(_TICK):
            if self._stream.ended.is_set() and not self._closed.wait(_GRACE):
                end_process()
            until = self._until
            if until is not None and time.monotonic() > until:
                self._tell()
                end_process()

    def _tell(self) -> None:
        frame = sys._current_frames().get(self._watched)
        with suppress(OSError):
            self._stream.tell({"hanging": self._limit, "where": "".join(traceback.format_stack(frame))})

    def close(self) -> None:
        """Watch no longer."""
        self._closed.set()
        self._thread.join()


def end_process() -> None:
    """Kill what this process has started, then end it at once."""
    for child in _descendants(os.getpid()):
        with suppress(OSError):
            os.kill(child, signal.SIGKILL)
    os._exit(1)


def _descendants(process: int) -> list[int]:
    """Return the processes that one has started, and those that they have; on Linux, elsewhere none."""
    parents = {int(stat.parent.name): _parent(stat) for stat in Path("/proc").glob("[0-9]*/stat")}
    found = [process]
    for each in found:  # grows meanwhile
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]


def _parent(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has ended meanwhile
        return 0
