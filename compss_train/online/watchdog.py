"""A watchdog: ends this process where a simulation hangs, or goes on when nobody wants its samples."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from compss_train.online.sender import Stream
from compss_train.parameter_server.base import Closable

_TICK = 0.25
_GRACE = 2.0
"""Seconds that a simulation has to end by itself once training has ended, or to say that it hangs."""


class Watchdog(Closable):
    """Watches the main thread's ``computing()`` for one that takes longer than ``limit`` seconds, if any.

    The process ends, since nothing else stops a solver that is deep in its own code: the engine starts another one.
    """

    def __init__(self, stream: Stream, limit: float | None) -> None:
        self._stream, self._limit = stream, limit
        self._since: float | None = None
        self._closed = threading.Event()
        self._watched = threading.get_ident()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._thread.start()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Mark what may not take longer."""
        self._since = time.monotonic()
        if self._limit is not None:  # for a solver that never lets another thread of Python run
            faulthandler.dump_traceback_later(self._limit + _GRACE, exit=True, file=sys.__stderr__ or 2)
        try:
            yield
        finally:
            self._since = None
            if self._limit is not None:
                faulthandler.cancel_dump_traceback_later()

    def _run(self) -> None:
        while not self._closed.wait(_TICK):
            if self._stream.ended.is_set() and not self._closed.wait(_GRACE):
                os._exit(1)
            if self._limit is not None and self._since is not None and time.monotonic() - self._since > self._limit:
                self._tell()
                os._exit(1)

    def _tell(self) -> None:
        frame = sys._current_frames().get(self._watched)
        with suppress(OSError):
            self._stream.tell({"hanging": self._limit, "where": "".join(traceback.format_stack(frame))})

    def close(self) -> None:
        """Watch no longer."""
        self._closed.set()
        self._thread.join()
