"""Liveness: what a process's task has done so far, and how long a healthy task may be silent.

A report costs less than a microsecond because nothing is sent: the process adds to counters in a
mapped file. Other processes that map the file can read them at any time: to notice tasks that are
stopped or hang (``watch``), and for the display of progress within a round.
"""

import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_COUNTERS_END = 16
"""Bytes of the two counters: of reports, and of samples."""

_NUMBERS_END = 32
"""Bytes of the counters and of two numbers that say how the task is watched."""

SIZE = 256
"""Bytes of a heartbeat: its four numbers, and a text."""

WARN_SECONDS = 30.0
"""Minimum silence before a warning, in seconds: a first batch may have to read large files."""

WARN_FACTOR = 10.0
"""A silence must be this many times as long as the longest one so far to cause a warning."""


class Heartbeat:
    """The reports of one process, in a file of ``SIZE`` bytes at ``path``.

    Only this process writes them. A text that is read while it changes may be garbled.

    They are in a file of ``SIZE`` bytes at ``path``.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        with open(path, "r+b") as file:
            memory = memoryview(mmap.mmap(file.fileno(), SIZE))
        self._text = memory[_NUMBERS_END:]
        self._counts = memory[:_COUNTERS_END].cast("Q")
        self._watched = memory[_COUNTERS_END:_NUMBERS_END].cast("d")

    def report(self, samples: int = 0, doing: str | None = None) -> None:
        """Report progress of the task: newly trained samples, or what it does from now on."""
        if doing is not None:
            size = SIZE - _NUMBERS_END
            self._text[:] = doing.encode()[:size].ljust(size, b"\0")
        self._counts[0] += 1
        self._counts[1] += samples

    def watch(self, fit: int, timeout: float) -> None:
        """Report the number of the task's fit, and how it is watched: see ``watched``."""
        self._watched[0] = 0  # while the other one changes
        self._watched[1] = timeout
        self._watched[0] = fit

    @property
    def beats(self) -> int:
        """Number of reports so far."""
        return int(self._counts[0])

    @property
    def samples(self) -> int:
        """Total number of samples that tasks have trained so far."""
        return int(self._counts[1])

    @property
    def doing(self) -> str:
        """What the process does, such as ``round 3 on worker 1``."""
        return bytes(self._text).rstrip(b"\0").decode(errors="replace")

    @property
    def watched(self) -> tuple[int, float]:
        """The number of the task's fit and the silence that ends the task; 0 for none."""
        fit = self._watched[0]
        timeout = self._watched[1]
        return (int(fit), timeout) if fit == self._watched[0] else (0, 0.0)


_report: ContextVar[Callable[[int, str | None], None] | None] = ContextVar("report", default=None)
"""Takes the reports of tasks, as ``Heartbeat.report`` does.

Tasks are plain functions and get no engine.
"""


@contextmanager
def reporting_to(report: Callable[[int, str | None], None]) -> Iterator[None]:
    """Let tasks inside the context report to a function, such as ``Heartbeat.report``."""
    token = _report.set(report)
    try:
        yield
    finally:
        _report.reset(token)


def beat(samples: int = 0) -> None:
    """Report from a task that it makes progress, with newly trained samples; for each batch."""
    report = _report.get()
    if report is not None:
        report(samples, None)


def describe(doing: str) -> None:
    """Report from a task what it does from now on."""
    report = _report.get()
    if report is not None:
        report(0, doing)
