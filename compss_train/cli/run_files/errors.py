"""Errors in run files: exceptions, a collector that reports all errors at once, and the format of messages."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TypeVar

from compss_train._utils.validation import suggestion

T = TypeVar("T")


class RunFileError(ValueError):
    """A run file, or an object that it names, is invalid; the message lists all errors that were found."""


class InvalidValueError(ValueError):
    """A value of a run file is invalid."""


class ErrorCollector:
    """Collects the errors in a run file, each with the section or key that it belongs to.

    ``source`` is the name of the file; messages begin with it.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._exceptions: list[Exception] = []
        self._messages: list[str] = []

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, where: str, message: str) -> None:
        """Add an error of a section or key."""
        self._messages.append(f"{where}: {message}" if where else message)

    def catch(self, where: str) -> CaughtErrors:
        """Return a context manager that adds an exception raised in its block, and continues after the block."""
        return CaughtErrors(self, where)

    def add_exception(self, where: str, error: Exception) -> None:
        """Add an exception as the error of a section or key."""
        self._exceptions.append(error)
        self.add(where, format_exception(error))

    def raise_errors(self) -> None:
        """Raise ``RunFileError`` that lists all errors, if there are any."""
        if not self._messages:
            return
        messages = [message.replace("\n", "\n    ") for message in self._messages]
        text = f" {messages[0]}" if len(messages) == 1 else "".join(f"\n  {message}" for message in messages)
        error = RunFileError(f"{self.source}:{text}")
        raise error from (self._exceptions[0] if self._exceptions else None)


class CaughtErrors:
    """The context manager of ``ErrorCollector.catch``."""

    def __init__(self, errors: ErrorCollector, where: str) -> None:
        self._errors, self._where = errors, where

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> bool:
        if not isinstance(error, Exception):  # user functions may raise any kind
            return False
        self._errors.add_exception(self._where, error)
        return True


def require(value: T | None) -> T:
    """Return a value that is only ``None`` after an error was collected; raise ``RunFileError`` if it is."""
    if value is None:
        raise RunFileError("the run file is invalid, but no error was collected")
    return value


def format_exception(error: BaseException) -> str:
    """Return the message of an exception, after its type unless its message is written for users."""
    message = exception_message(error)
    if isinstance(error, ValueError | ModuleNotFoundError | OSError) and message:
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def exception_message(error: BaseException) -> str:
    """Return the message of an exception; for an error of the operating system, the file and the reason."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def append_notes(message: str, error: BaseException, *lines: str) -> str:
    """Return a message followed by the notes of an exception and more lines, all indented."""
    return "\n  ".join([message, *getattr(error, "__notes__", ()), *lines])


@contextmanager
def rejected_samples(verb: str) -> Iterator[None]:
    """Convert errors that a network raises into a ``ValueError``: these samples cannot be ``verb``, and why."""
    try:
        yield
    except (RuntimeError, ArithmeticError, LookupError) as error:
        raise ValueError(append_notes(f"these samples cannot be {verb}: {error}", error)) from error


def unknown_name(name: str, accepted: Collection[str], kind: str = "key") -> str:
    """Return the message for an unknown name: the most similar name, and all accepted ones."""
    return f"unknown {kind}{suggestion(name, accepted) or '.'} The {kind}s are {', '.join(accepted)}"
