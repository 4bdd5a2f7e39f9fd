"""Modules of the program on COMPSs's nodes: their sources are an input of each task.

What a worker prints stays on its node. So what the user should know of its process travels to the
coordinator with the results of its tasks, and of those that read them.
"""

import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from compss_train.engines import calls, watch
from compss_train.engines.codec import SerializedValue, pickled
from compss_train.engines.compss import runtime
from compss_train.engines.local import run_in_child
from compss_train.engines.sources import SentModules, packed_sources


@dataclass(frozen=True, slots=True)
class Noted:
    """A result of a task, with what the coordinator should say."""

    value: Any
    notes: tuple[str, ...]


class _TaskModules(SentModules):
    """Imports the modules that came with the last task of this process."""

    packed: bytes = b""

    def __init__(self) -> None:
        self.notes: dict[str, None] = {}
        """What happened in this process, and in those whose results it has read, in order."""

    def say(self, message: str) -> None:
        """Note it for the coordinator."""
        self.notes.setdefault(message)


@cache
def task_modules() -> _TaskModules:
    """Return the finder of this process."""
    return _TaskModules()


def program_sources() -> SerializedValue:
    """Return the sources of this program's modules, for its tasks."""
    return SerializedValue.of(packed_sources(runtime.main_file()))


def receive(packed: bytes) -> None:
    """Let this process import what it does not find on its node."""
    modules = task_modules()
    modules.packed = packed
    if modules not in sys.meta_path:
        sys.meta_path.append(modules)


def note(message: str) -> None:
    """Have the coordinator say something once it gets a result of this process."""
    task_modules().say(message)


@cache
def say_once(message: str) -> None:
    """Tell the user, once a program."""
    watch.say(message)


def with_notes(value: Any) -> Any:
    """Return a result with the notes of this process, if it has any."""
    notes = tuple(task_modules().notes)
    return Noted(value, notes) if notes else value


def without_notes(value: Any, say: Callable[[str], None]) -> Any:
    """Return the value of a result, whose notes are passed to ``say``."""
    if not isinstance(value, Noted):
        return value
    for message in value.notes:
        say(message)
    return value.value


def run_in_child_with_modules(
    function: Callable[..., Any], timeout: float | None, gpu: bool, *args: Any
) -> Any:
    """Do what ``run_in_child`` does; the child imports what this process can import."""
    return without_notes(run_in_child(_SentFunction(function), timeout, gpu, *args), note)


class _SentFunction:
    """A function for a child, which gets the sources before it unpickles anything of the user."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__module__ = getattr(function, "__module__", None) or ""
        self.__name__ = calls.name_of(function)
        self._function = function

    def __call__(self, *args: Any) -> Any:
        return with_notes(self._function(*args))

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (task_modules().packed, pickled(self._function))


def _received(packed: bytes, function: bytes) -> _SentFunction:
    receive(packed)
    return _SentFunction(pickle.loads(function))
