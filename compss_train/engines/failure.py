"""A task's exception as data, so that it travels between processes with its traceback."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass

import cloudpickle

from compss_train.exceptions import WorkerTraceback


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception of a task, made safe to send: one that cannot be pickled becomes a ``RuntimeError``."""

    pickled: bytes
    text: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe the exception that is being handled."""
        text = "".join(traceback.format_exception(error))
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
