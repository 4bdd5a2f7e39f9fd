"""What every engine does with a task: fill in its arguments, call its function, and send its exception."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle

from compss_train.exceptions import WorkerTraceback

MAX_RUNS = 4
"""How often a task is run if its process dies each time; COMPSs makes as many attempts."""


def map_args(args: Sequence[Any], function: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Return a task's arguments, each replaced by ``function(argument)``; of a list, its items are replaced."""
    return tuple(
        [
            [function(item) for item in argument] if isinstance(argument, list) else function(argument)
            for argument in args
        ]
    )


def results_of(function: Callable[..., Any], args: Sequence[Any], returns: int) -> list[Any]:
    """Call a task's function; return its result, or the items of the tuple that it returns for several results."""
    result = function(*args)
    if returns == 1:
        return [result]
    if len(result) != returns:
        raise ValueError(f"{name_of(function)} returned {len(result)} results, but returns={returns}")
    return list(result)


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a task's function."""
    return getattr(function, "__name__", repr(function))


def exited(error: SystemExit) -> RuntimeError:
    """Return the error of a task that would have ended its process, and with the serial engine the program."""
    return RuntimeError(
        f"a task called sys.exit({'' if error.code is None else repr(error.code)}): networks, losses and all else "
        "that tasks run must not end their process; raise an exception instead"
    )


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception of a task in a form that can be sent; one that cannot be pickled becomes a ``RuntimeError``."""

    pickled: bytes
    text: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Return the failure for an exception that is being handled; ``SystemExit`` becomes a ``RuntimeError``."""
        text = "".join(traceback.format_exception(error))
        if isinstance(error, SystemExit):
            error = exited(error)
        try:
            pickled = cloudpickle.dumps(error)
            pickle.loads(pickled)
        except Exception:
            pickled = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
        return cls(pickled, text)

    def exception(self) -> BaseException:
        """Return the exception with the worker's traceback as its cause."""
        error: BaseException = pickle.loads(self.pickled)
        error.__cause__ = WorkerTraceback(self.text)
        return error
