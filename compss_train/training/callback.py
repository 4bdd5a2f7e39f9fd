"""Callbacks: their base class, and the list that calls them."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from compss_train.worker.callbacks import WorkerCallback, numbered


class Callback:
    """Base class of callbacks. All hooks do nothing; override those you need.

    Hooks run in the coordinator's thread, in the order of the list. The order of calls is fixed: the start of the
    fit, then the start and end of each round (a cancelled round has no end), then the end of the fit; an exception
    may occur at any time. An exception raised by a hook ends the fit and names the callback;
    ``trainer.stop(reason)`` ends the fit cleanly.

    ``trainer`` is the ``DistributedTrainer``. It is typed as ``Any`` here, so that an override may annotate it with
    ``DistributedTrainer``.
    """

    keeps_state: ClassVar[bool] = False
    """Whether the callback saves the state of the fit. If so, its ``on_round_end`` runs after all other callbacks',
    but its ``on_fit_start`` and ``on_fit_end`` run before them: if its folder is unavailable, the others have not
    done anything yet."""

    def on_fit_start(self, trainer: Any, total_samples: int | None) -> None:
        """Run before the first round; ``total_samples`` is the number to train on, ``None`` if unknown."""

    def on_round_start(self, trainer: Any, number: int) -> None:
        """Run when the fit starts to wait for a round; its tasks may already be running."""

    def on_round_end(self, trainer: Any, record: dict[str, Any]) -> None:
        """Run after a round; ``record`` is its entry in ``trainer.history``."""

    def on_fit_end(self, trainer: Any) -> None:
        """Run after the last round, when the trainer has the final parameters."""

    def on_exception(self, trainer: Any, error: BaseException) -> None:
        """Run when an exception, Ctrl-C included, ends a fit after ``on_fit_start``; it is re-raised afterwards."""

    def check(self, trainer: Any) -> None:
        """Raise an exception if the trainer does not suit the callback; called before fits and in ``check_fit``."""

    def traced_worker(self, number: int) -> int | None:
        """Return the worker to trace (``torch.profiler``) in round ``number``, or ``None``."""
        return None

    def write_trace(self, trainer: Any, worker: int, trace: bytes) -> None:
        """Save the trace of a worker's round, gzip-compressed JSON; called after the round."""

    def needs_state(self, number: int) -> bool:
        """Return whether ``on_round_end`` of round ``number`` will call ``trainer.snapshot()``.

        Workers that merge asynchronously then wait for each other once, so that the snapshot is consistent.
        """
        return False

    def watches(self) -> str | None:
        """Return the name of the record field that the callback monitors, or ``None``."""
        return None

    def writes_to(self) -> Path | None:
        """Return the file or folder that no other callback may write to, or ``None``."""
        return None

    def resume_folder(self) -> Path | None:
        """Return the folder of checkpoints that ``fit(resume=True)`` resumes from, or ``None``."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed fit needs: numbers, strings and arrays, in dicts and lists."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of ``state_dict``; called before ``on_fit_start`` when a fit is resumed."""


AnyCallback: TypeAlias = Callback | WorkerCallback
"""What ``fit(callbacks=...)`` takes."""


class CallbackList:
    """The callbacks of one fit, called in order."""

    def __init__(
        self,
        callbacks: Sequence[Callback],
        trainer: Any,
        in_workers: Sequence[WorkerCallback] = (),
    ) -> None:
        self.callbacks = tuple(sorted(callbacks, key=lambda callback: callback.keeps_state))
        self.in_workers = tuple(in_workers)
        """The callbacks that run in the workers."""
        self.all: tuple[AnyCallback, ...] = (*self.callbacks, *self.in_workers)
        self._trainer = trainer
        self._started: list[Callback] = []
        self.saved: dict[str, Any] = {}
        """States from a checkpoint, which callbacks load at the start of the fit."""

    @contextmanager
    def fit(self, total_samples: int | None) -> Iterator[None]:
        """Call the hooks for the start of a fit, and for its end or exception."""
        try:
            for name, callback in self._by_name():
                if name in self.saved:
                    self._call(callback, "load_state_dict", self.saved[name])
            state_first = sorted(self.callbacks, key=lambda callback: not callback.keeps_state)
            for callback in state_first:
                self._started.append(callback)
                self._call(callback, "on_fit_start", self._trainer, total_samples)
            yield
            self._call_hook(state_first, "on_fit_end")
        except BaseException as error:
            for callback in [callback for callback in self.callbacks if callback in self._started]:
                try:
                    callback.on_exception(self._trainer, error)
                except Exception as another:
                    error.add_note(f"And {type(callback).__name__}.on_exception raised {another!r}.")
            raise

    def needs_state(self, number: int) -> bool:
        """Return whether a callback will take a snapshot after round ``number``."""
        return any(self._call(callback, "needs_state", number) for callback in self.callbacks)

    def round_start(self, number: int) -> None:
        """Call ``on_round_start``."""
        self._call_hook(self.callbacks, "on_round_start", number)

    def round_end(self, record: dict[str, Any]) -> None:
        """Call ``on_round_end``."""
        self._call_hook(self.callbacks, "on_round_end", record)

    def traced(self, number: int) -> set[int]:
        """Return the workers that are traced in round ``number``."""
        workers = {self._call(callback, "traced_worker", number) for callback in self.callbacks}
        return workers - {None}

    def trace(self, number: int, worker: int, trace: bytes) -> None:
        """Call ``write_trace`` of the callbacks that requested the trace."""
        wanting = [each for each in self.callbacks if self._call(each, "traced_worker", number) == worker]
        self._call_hook(wanting, "write_trace", worker, trace)

    def states(self) -> dict[str, Any]:
        """Return the non-empty states of callbacks, by name."""
        states = {name: self._call(callback, "state_dict") for name, callback in self._by_name()}
        return {name: state for name, state in states.items() if state}

    def _by_name(self) -> Iterator[tuple[str, Callback]]:
        """Iterate over pairs of a unique name and a callback: class, monitored field and a number."""
        names = []
        for callback in self.callbacks:
            watched, kind = self._call(callback, "watches"), type(callback).__name__
            names.append(kind if watched is None else f"{kind} of {watched}")
        return zip(numbered(names), self.callbacks, strict=True)

    def _call_hook(self, callbacks: Iterable[Callback], hook: str, *args: Any) -> None:
        for callback in callbacks:
            self._call(callback, hook, self._trainer, *args)

    def _call(self, callback: Callback, method: str, *args: Any) -> Any:
        """Call a method of a callback; its exceptions get a note with the callback's name."""
        try:
            return getattr(callback, method)(*args)
        except KeyboardInterrupt:  # not raised by the callback, but while it ran
            raise
        except BaseException as error:
            unnamed = isinstance(error, OSError) and error.filename is None
            path = callback.writes_to() if unnamed else None
            place = "" if path is None else f", which writes to {path}"
            error.add_note(f"Raised in the callback {type(callback).__name__}, by its {method}{place}.")
            raise
