"""A method that is called in a thread, a moment after it was asked for."""

import threading
import weakref
from collections.abc import Callable
from typing import Any

from compss_train._utils import Closable


class DeferredCall(Closable):
    """Calls a method ``seconds`` after ``ask``, in a thread; it does not keep the object alive.

    What asks meanwhile is served by the same call.
    """

    def __init__(self, method: Callable[[], object], seconds: float, *, name: str) -> None:
        self._asked = threading.Event()
        self._closed = threading.Event()
        weakref.finalize(method.__self__, _end, self._asked, self._closed)  # type: ignore[attr-defined]
        self._thread = threading.Thread(
            target=_call_when_asked,
            args=(weakref.WeakMethod(method), seconds, self._asked, self._closed),
            name=name,
            daemon=True,
        )
        self._thread.start()

    def ask(self) -> None:
        """Ask for a call."""
        if not self._asked.is_set():
            self._asked.set()

    def withdraw(self) -> None:
        """Ask for none, after all: what it would do is done."""
        self._asked.clear()

    def close(self) -> None:
        """Wait for a call that runs, and make no other one."""
        _end(self._asked, self._closed)
        self._thread.join()


def _call_when_asked(
    method: "weakref.WeakMethod[Any]",
    seconds: float,
    asked: threading.Event,
    closed: threading.Event,
) -> None:
    while not closed.is_set():  # also after a call that has withdrawn what close asks
        asked.wait()
        if closed.wait(seconds):
            return
        call = method()
        if call is not None:
            call()
        del call


def _end(asked: threading.Event, closed: threading.Event) -> None:
    closed.set()
    asked.set()
