"""How tests wait, and how programs under test take their time; only these functions sleep.

``python -m tests.lint_waits``, a part of ``make lint``, finds all others.
"""

from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep  # as they are: some tests set the clock of the module
from typing import NoReturn, TypeVar

T = TypeVar("T")

LIMIT = 300.0
"""Seconds after which what should come counts as never coming; only a failing test takes them."""


def wait_until(
    condition: Callable[[], object],
    seconds: float = LIMIT,
    *,
    every: float = 0.005,
    said: Callable[[], object] = lambda: "it never came to be",
) -> None:
    """Look until ``condition()`` is true; raise ``TimeoutError`` with what ``said()`` returns after
    ``seconds``.
    """
    end = monotonic() + seconds
    while not condition():
        if monotonic() > end:
            raise TimeoutError(f"waited for {seconds:g} s: {said()}")
        sleep(every)


def awaited(get: Callable[[], T | None]) -> T:
    """Return what ``get()`` returns as soon as that is not ``None``."""
    found: list[T] = []

    def is_there() -> bool:
        if (value := get()) is not None:
            found.append(value)
        return bool(found)

    wait_until(is_there)
    return found[0]


def text_of(path: Path) -> str:
    """Return what another process writes to a file, which is there before the text, once it has."""
    return awaited(lambda: (path.read_text() or None) if path.exists() else None)


def settled(look: Callable[[], T], seconds: float = LIMIT, *, apart: float = 0.1) -> T:
    """Return what ``look()`` gives as soon as it gives the same twice, ``apart`` seconds from each
    other.
    """
    seen: list[T] = []

    def is_same() -> bool:
        seen.append(look())
        return len(seen) > 1 and seen[-1] == seen[-2]

    wait_until(
        is_same,
        seconds,
        every=apart,
        said=lambda: f"it changes all the time, and was {seen[-1]} at last",
    )
    return seen[-1]


def hang() -> NoReturn:
    """Do nothing until a signal or an exception from another thread comes: a program under test
    that hangs.

    Fails after ten minutes, so that a test that forgets it leaves no process behind for longer.
    """
    end = monotonic() + 600
    while monotonic() < end:
        sleep(0.01)
    raise TimeoutError("nobody has ended what hangs")


def pause(seconds: float) -> None:
    """Take so long: a network, transform or simulation under test that is slow."""
    sleep(seconds)
