"""Callbacks: their base class, the list that calls them, and the checks of it before any task
starts.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from compss_train._utils import files, validation
from compss_train.reports.records import NUMERIC, NUMERIC_ONLINE
from compss_train.training.build_arguments import check_picklable
from compss_train.training.trainer_protocol import TrainerProtocol
from compss_train.worker.callbacks import WorkerCallback, numbered


class Callback:
    """Base class of callbacks. All hooks do nothing; override those you need.

    Hooks run in the coordinator's thread, in the order of the list. The order of calls is fixed:
    the start of the fit, then the start and end of each round (a cancelled round has no end), then
    the end of the fit; an exception may occur at any time. An exception raised by a hook ends the
    fit and names the callback; ``trainer.stop(reason)`` ends the fit cleanly.

    ``trainer`` is the ``DistributedTrainer``. It is typed as ``Any`` here, so that an override may
    annotate it with that class, or as the callbacks of this package do with ``TrainerProtocol``.
    """

    keeps_state: ClassVar[bool] = False
    """Whether the callback saves the state of the fit. If so, its ``on_round_end`` runs after all
    other callbacks', but its ``on_fit_start`` and ``on_fit_end`` run before them: if its folder is
    unavailable, the others have not done anything yet."""

    def on_fit_start(self, trainer: Any, total_samples: int | None) -> None:
        """Run before the first round; ``total_samples`` is the number to train on, ``None`` if
        unknown.
        """

    def on_round_start(self, trainer: Any, number: int) -> None:
        """Run when the fit starts to wait for a round; its tasks may already be running."""

    def on_round_end(self, trainer: Any, record: dict[str, Any]) -> None:
        """Run after a round; ``record`` is its entry in ``trainer.history``."""

    def on_fit_end(self, trainer: Any) -> None:
        """Run after the last round, when the trainer has the final parameters."""

    def on_exception(self, trainer: Any, error: BaseException) -> None:
        """Run when an exception, Ctrl-C included, ends a fit after ``on_fit_start``; it is
        re-raised afterwards.
        """

    def check(self, trainer: Any) -> None:
        """Raise an exception if the trainer does not suit the callback; called before fits and in
        ``check_fit``.
        """

    def traced_worker(self, number: int) -> int | None:
        """Return the worker to trace (``torch.profiler``) in round ``number``, or ``None``."""
        return None

    def write_trace(self, trainer: Any, worker: int, trace: bytes) -> None:
        """Save the trace of a worker's round, gzip-compressed JSON; called after the round."""

    def needs_state(self, number: int) -> bool:
        """Return whether ``on_round_end`` of round ``number`` will call ``trainer.snapshot()``.

        Workers that merge asynchronously then wait for each other once, so that the snapshot is
        consistent.
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
        """Return the state that a resumed fit needs: numbers, strings and arrays, in dicts and
        lists.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of ``state_dict``; called before ``on_fit_start`` when a fit is
        resumed.
        """


AnyCallback: TypeAlias = Callback | WorkerCallback
"""What ``fit(callbacks=...)`` takes."""


HOOKS, WORKER_HOOKS = (
    tuple(name for name in vars(kind) if name.startswith("on_"))
    for kind in (Callback, WorkerCallback)
)


class CallbackList:
    """The callbacks of one fit, called in order.

    ``records`` says what records will have, as in ``check_watched``. Raises ``TypeError`` and
    ``ValueError`` for callbacks that the fit cannot use.
    """

    def __init__(
        self, callbacks: Sequence[AnyCallback], trainer: TrainerProtocol, **records: bool
    ) -> None:
        own = (each for each in callbacks if isinstance(each, Callback))
        self.callbacks = tuple(sorted(own, key=lambda callback: callback.keeps_state))
        self.in_workers = tuple(each for each in callbacks if isinstance(each, WorkerCallback))
        """The callbacks that run in the workers."""
        self.all: tuple[AnyCallback, ...] = (*self.callbacks, *self.in_workers)
        self._trainer = trainer
        self._started: list[Callback] = []
        self.saved: dict[str, Any] = {}
        """States from a checkpoint, which callbacks load at the start of the fit."""
        for kind in dict.fromkeys(map(type, callbacks)):
            warn_of_other_hooks(kind)
        for each in self.in_workers:
            check_picklable(**{type(each).__name__: each})
            if records.get("online"):
                raise ValueError(
                    f"{type(each).__name__} is a WorkerCallback; fit_online does not call those"
                )
        for callback in self.all:
            callback.check(trainer)
        watches = any(callback.watches() for callback in self.callbacks)
        if watches and not (trainer.measures_in_steps or self.in_workers):
            check_watched(self.callbacks, trainer.measures, **records)

    @contextmanager
    def fit(self, total_samples: int | None) -> Iterator[None]:
        """Call the hooks for the start of a fit, and for its end or exception."""
        try:
            for name, callback in self._by_name() if self.saved else ():
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
                    error.add_note(
                        f"And {type(callback).__name__}.on_exception raised {another!r}."
                    )
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
        return {self._call(callback, "traced_worker", number) for callback in self.callbacks} - {
            None
        }

    def trace(self, number: int, worker: int, trace: bytes) -> None:
        """Call ``write_trace`` of the callbacks that requested the trace."""
        wanting = [
            each for each in self.callbacks if self._call(each, "traced_worker", number) == worker
        ]
        self._call_hook(wanting, "write_trace", worker, trace)

    def states(self) -> dict[str, Any]:
        """Return the non-empty states of callbacks, by name."""
        states = {name: self._call(callback, "state_dict") for name, callback in self._by_name()}
        return {name: state for name, state in states.items() if state}

    def _by_name(self) -> Iterator[tuple[str, Callback]]:
        """Iterate over pairs of a unique name and a callback: class, monitored field and a
        number.
        """
        names = []
        for callback in self.callbacks:
            watched = self._call(callback, "watches")
            kind = type(callback).__name__
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
            error.add_note(
                f"Raised in the callback {type(callback).__name__}, by its {method}{place}."
            )
            raise


def check_callbacks(callbacks: Iterable[object]) -> list[AnyCallback]:
    """Return the callbacks as a list.

    Raises ``TypeError`` for an object that is not a callback, ``ValueError`` for a callback that
    occurs twice, for two callbacks that write to the same path, and for one that would write to an
    object store and cannot.
    """
    if isinstance(callbacks, str) or not isinstance(callbacks, Iterable):
        raise TypeError(f"callbacks={callbacks!r}: give a list of callbacks")
    checked: list[AnyCallback] = []
    owners: dict[Path, AnyCallback] = {}
    for callback in callbacks:
        if not isinstance(callback, Callback | WorkerCallback):
            hint = "; call the class to create one" if isinstance(callback, type) else ""
            raise TypeError(f"callbacks= has {callback!r}, which is not a Callback{hint}")
        if any(callback is other for other in checked):
            raise ValueError(f"callbacks= has the same {type(callback).__name__} twice")
        checked.append(callback)
        path = None if isinstance(callback, WorkerCallback) else callback.writes_to()
        if path is None or files.is_special_file(Path(path)):
            continue
        if str(path).partition("/")[0].endswith(":"):  # of s3://...
            raise ValueError(
                f"{type(callback).__name__} has {path}, but only Checkpoint writes to object stores"
            )
        if (other := owners.setdefault(Path(path).resolve(), callback)) is not callback:
            raise ValueError(
                f"{type(other).__name__} and {type(callback).__name__} would both write to {path}; "
                "give each its own path"
            )
    return checked


def warn_of_other_hooks(kind: type[AnyCallback]) -> None:
    """Warn of methods that are named like hooks but are not, as in other libraries: they are never
    called.
    """
    hooks = WORKER_HOOKS if issubclass(kind, WorkerCallback) else HOOKS
    methods = [
        name for name in dir(kind) if name.startswith("on_") and callable(getattr(kind, name))
    ]
    if others := [name for name in methods if name not in hooks]:
        validation.warn_user(
            f"fits do not call {', '.join(others)} of {kind.__name__}; the hooks of a callback are "
            f"{', '.join(hooks)}"
        )


def check_watched(
    callbacks: Sequence[Callback],
    measures: Collection[str],
    *,
    validated: bool,
    averaged: bool = False,
    online: bool = False,
) -> None:
    """Raise ``ValueError`` if a callback monitors a field that records will not have.

    Nothing is raised if there is a user's own callback, which may add the field.
    """
    of_validation = [f"val_{name}" for name in measures]
    of_validation += [f"val_averaged_{name}" for name in measures] if averaged else []
    measured = [*measures, *(of_validation if validated else ())]
    own = any(not type(each).__module__.startswith("compss_train.") for each in callbacks)
    for callback in callbacks:
        name = callback.watches()
        if name is None or name in (*measured, *(NUMERIC_ONLINE if online else NUMERIC)):
            continue
        missing = name in of_validation
        if own and not missing:
            continue
        hint = "; give fit validation_data=" if missing else validation.suggestion(name, measured)
        raise ValueError(
            f"{type(callback).__name__} monitors {name!r}, but records have no {name!r} but "
            f"{', '.join(measured)}{hint}"
        )
