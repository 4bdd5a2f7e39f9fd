"""What is wrong with a run file: all of it is collected, so that it can be told at once."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TypeVar

from compss_train._utils.validation import suggestion

Made = TypeVar("Made")


class RunFileError(ValueError):
    """A run file, or something that it names, is not as it should be; the message tells all that was found."""


class WrongValueError(ValueError):
    """What is wrong with one value of a run file; the message needs no name of an exception before it."""


class Problems:
    """Collects what is wrong with the file ``source``, and whose fault it was."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.errors: list[Exception] = []
        self._told: list[str] = []

    def __len__(self) -> int:
        return len(self._told)

    def add(self, where: str, what: str) -> None:
        """Note a problem of a section or key."""
        self._told.append(f"{where}: {what}" if where else what)

    def noting(self, where: str) -> Noting:
        """Give a block that an exception ends: it is noted, and what comes after the block goes on."""
        return Noting(self, where)

    def check(self) -> None:
        """Raise ``RunFileError`` with all problems where there are any."""
        if not self._told:
            return
        told = [text.replace("\n", "\n    ") for text in self._told]
        text = f" {told[0]}" if len(told) == 1 else "".join(f"\n  {line}" for line in told)
        error = RunFileError(f"{self.source}:{text}")
        raise error from (self.errors[0] if self.errors else None)


class Noting:
    """The block of ``Problems.noting``."""

    def __init__(self, problems: Problems, where: str) -> None:
        self._problems, self._where = problems, where

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> bool:
        if not isinstance(error, Exception):  # the user's own functions may raise anything
            return False
        self._problems.errors.append(error)
        self._problems.add(self._where, describe(error))
        return True


def made(value: Made | None) -> Made:
    """Return what was made, which is there when nothing was wrong."""
    if value is None:
        raise RunFileError("something is wrong with the run file that was not told")
    return value


def describe(error: BaseException) -> str:
    """Return what to say about an exception: its type, unless its text is made for users, and its text."""
    text = text_of(error)
    if isinstance(error, ValueError | ModuleNotFoundError | OSError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def text_of(error: BaseException) -> str:
    """Return the text of an exception; of the system's, what file it is about and what was wrong with it."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def with_notes(told: str, error: BaseException, *more: str) -> str:
    """Return what is told of an exception with its notes below, and more lines below these."""
    return "\n  ".join([told, *getattr(error, "__notes__", ()), *more])


@contextmanager
def of_samples(done: str) -> Iterator[None]:
    """Let what a network raises in the block be a ``ValueError`` that these samples cannot be ``done``, and why."""
    try:
        yield
    except (RuntimeError, ArithmeticError, LookupError) as error:
        raise ValueError(with_notes(f"these samples cannot be {done}: {error}", error)) from error


def unknown(name: str, accepted: Collection[str], kind: str = "key") -> str:
    """Return what to say about a name that is not among the accepted ones: a suggestion, and all."""
    return f"there is no such {kind}{suggestion(name, accepted) or ';'} The {kind}s are {', '.join(accepted)}"
