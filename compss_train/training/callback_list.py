"""``CallbackList``: calls the callbacks of a fit, and checks them before any task starts."""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from numbers import Real
from pathlib import Path
from typing import Any

from compss_train._utils import files, validation
from compss_train.reports.records import NUMERIC, NUMERIC_ONLINE
from compss_train.training.callback import AnyCallback, Callback, MergingWorker
from compss_train.training.pickling import check_picklable
from compss_train.training.trainer_protocol import TrainerProtocol
from compss_train.training.unseen_changes import UnseenChanges
from compss_train.training.untrained_uses import UntrainedUses
from compss_train.worker.callbacks import WorkerCallback, numbered


def _hooks_of(kind: type[AnyCallback]) -> tuple[str, ...]:
    return tuple(name for name in vars(kind) if name.startswith("on_"))


HOOKS = _hooks_of(Callback)
WORKER_HOOKS = _hooks_of(WorkerCallback)


class CallbackList:
    """The callbacks of one fit, called in order.

    The keywords say what records will have, as in ``check_watched``. Raises ``TypeError`` and
    ``ValueError`` for callbacks that the fit cannot use.
    """

    def __init__(
        self,
        callbacks: Sequence[AnyCallback],
        trainer: TrainerProtocol,
        *,
        validated: bool,
        averaged: bool = False,
        online: bool = False,
    ) -> None:
        in_coordinator = (callback for callback in callbacks if isinstance(callback, Callback))
        self.callbacks = tuple(sorted(in_coordinator, key=lambda callback: callback.keeps_state))
        self.in_workers = tuple(
            callback for callback in callbacks if isinstance(callback, WorkerCallback)
        )
        """The callbacks that run in the workers."""
        self.of_user = tuple(
            callback
            for callback in self.callbacks
            if not type(callback).__module__.startswith("compss_train.")
        )
        """The callbacks of the coordinator that are not this package's own."""
        self.all: tuple[AnyCallback, ...] = (*self.callbacks, *self.in_workers)
        self.set_hyperparameters = any(callback.sets_hyperparameters for callback in self.callbacks)
        """Whether a callback sets hyperparameters after rounds, which must not run ahead."""
        self._trainer = trainer
        self._started: list[Callback] = []
        self.untrained_uses: UntrainedUses | None = None
        """The callbacks that use the network which was given to ``build``, if any may."""
        self.unseen_changes: UnseenChanges | None = None
        """What callbacks of users may change, although workers have copies of it."""
        self.saved: dict[str, Any] = {}
        """States from a checkpoint, which callbacks load at the start of the fit."""
        for kind in dict.fromkeys(map(type, callbacks)):
            warn_of_other_hooks(kind)
        for callback in self.in_workers:
            name = type(callback).__name__
            check_picklable(**{name: callback})
            if online:
                raise ValueError(f"{name} is a WorkerCallback; fit_online does not call those")
        for checked in self.all:
            checked.check(trainer)
        watches = any(callback.watches() for callback in self.callbacks)
        if watches and not (trainer.measures_in_steps or self.in_workers):
            check_watched(
                self.callbacks,
                trainer.measures,
                trainer.whole_measures,
                validated=validated,
                averaged=averaged,
                online=online,
            )

    @contextmanager
    def fit(self, total_samples: int | None) -> Iterator[None]:
        """Call the hooks for the start of a fit, and for its end or exception."""
        state_first = sorted(self.callbacks, key=lambda callback: not callback.keeps_state)
        try:
            if self.saved:
                self._load_states()
            for callback in state_first:
                self._started.append(callback)
                self._call(callback, "on_fit_start", self._trainer, total_samples)
            yield
            self.unseen_changes = None
            self._call_hook(state_first, "on_fit_end")
            if self.untrained_uses is not None:
                self.untrained_uses.warn_after("on_fit_end")
        except BaseException as error:
            self._tell_of(error)
            raise

    def _load_states(self) -> None:
        for name, callback in self._by_name():
            if name in self.saved:
                self._call(callback, "load_state_dict", self.saved[name])

    def _tell_of(self, error: BaseException) -> None:
        """Call ``on_exception`` of the callbacks that have started."""
        for callback in self.callbacks:
            if callback not in self._started:
                continue
            try:
                callback.on_exception(self._trainer, error)
            except Exception as second_error:
                name = type(callback).__name__
                error.add_note(f"And {name}.on_exception raised {second_error!r}.")

    def needs_state(self, number: int) -> bool:
        """Return whether a callback will take a snapshot after round ``number``."""
        return any(self._call(callback, "needs_state", number) for callback in self.callbacks)

    def round_start(self, number: int) -> None:
        """Call ``on_round_start``."""
        self._call_hook(self.callbacks, "on_round_start", number)

    @property
    def weighs(self) -> bool:
        """Whether a callback may change the weights of workers before they merge."""
        return any(type(callback).on_merge is not Callback.on_merge for callback in self.callbacks)

    def merge(self, workers: Sequence[MergingWorker]) -> None:
        """Call ``on_merge``; raise ``ValueError`` for weights that no mean can have."""
        for callback in self.callbacks:
            self._call_hook([callback], "on_merge", workers)
            weights = [worker.weight for worker in workers]
            if not all(_is_weight(weight) for weight in weights):
                raise ValueError(
                    f"{type(callback).__name__}.on_merge set the weights {weights}: give numbers "
                    "of at least 0"
                )
            if not any(weights):
                raise ValueError(
                    f"{type(callback).__name__}.on_merge set the weights of all "
                    f"{len(weights)} workers to 0: leave one of them at least"
                )

    def round_end(self, record: dict[str, Any]) -> None:
        """Call ``on_round_end``."""
        self._call_hook(self.callbacks, "on_round_end", record)
        if self.untrained_uses is not None:
            self.untrained_uses.warn_after("on_round_end")

    def traced(self, number: int) -> set[int]:
        """Return the workers that are traced in round ``number``."""
        workers = {self._call(callback, "traced_worker", number) for callback in self.callbacks}
        return workers - {None}

    def trace(self, number: int, worker: int, trace: bytes) -> None:
        """Call ``write_trace`` of the callbacks that requested the trace."""
        for callback in self.callbacks:
            if self._call(callback, "traced_worker", number) == worker:
                self._call_hook([callback], "write_trace", worker, trace)

    def states(self) -> dict[str, Any]:
        """Return the non-empty states of callbacks, by name."""
        states = {name: self._call(callback, "state_dict") for name, callback in self._by_name()}
        return {name: state for name, state in states.items() if state}

    def _by_name(self) -> Iterator[tuple[str, Callback]]:
        """Iterate over callbacks with unique names: class, monitored field and a number."""
        names = []
        for callback in self.callbacks:
            watched = self._call(callback, "watches")
            kind = type(callback).__name__
            names.append(kind if watched is None else f"{kind} of {watched}")
        return zip(numbered(names), self.callbacks, strict=True)

    def _call_hook(self, callbacks: Iterable[Callback], hook: str, *args: Any) -> None:
        changes = self.unseen_changes
        for callback in callbacks:
            watching: AbstractContextManager[None] = nullcontext()
            if changes is not None and callback in self.of_user:
                watching = changes.of(callback)
            with watching:
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
    items: list[object] | None = None
    if not isinstance(callbacks, str):
        with suppress(TypeError):
            items = list(callbacks)
    if items is None:
        raise TypeError(f"callbacks={callbacks!r}: give a list of callbacks")
    checked: list[AnyCallback] = []
    writers: dict[Path, AnyCallback] = {}
    for callback in items:
        if not isinstance(callback, Callback | WorkerCallback):
            hint = "; call the class to create one" if isinstance(callback, type) else ""
            raise TypeError(f"callbacks= has {callback!r}, which is not a Callback{hint}")
        if any(callback is known for known in checked):
            raise ValueError(f"callbacks= has the same {type(callback).__name__} twice")
        checked.append(callback)
        path = None if isinstance(callback, WorkerCallback) else callback.writes_to()
        if path is None or files.is_special_file(Path(path)):
            continue
        if str(path).partition("/")[0].endswith(":"):  # of s3://...
            raise ValueError(
                f"{type(callback).__name__} has {path}, but only Checkpoint writes to object stores"
            )
        writer = writers.setdefault(Path(path).resolve(), callback)
        if writer is not callback:
            raise ValueError(
                f"{type(writer).__name__} and {type(callback).__name__} would both write to "
                f"{path}; give each its own path"
            )
    return checked


def warn_of_other_hooks(kind: type[AnyCallback]) -> None:
    """Warn of methods that are named like hooks of other libraries, as they are never called."""
    hooks = WORKER_HOOKS if issubclass(kind, WorkerCallback) else HOOKS
    methods = [name for name in dir(kind) if callable(getattr(kind, name))]
    uncalled = [name for name in methods if name.startswith("on_") and name not in hooks]
    if uncalled:
        validation.warn_user(
            f"fits do not call {', '.join(uncalled)} of {kind.__name__}; the hooks of a callback "
            f"are {', '.join(hooks)}"
        )


def check_watched(
    callbacks: Sequence[Callback],
    measures: Collection[str],
    whole: Collection[str] = (),
    *,
    validated: bool,
    averaged: bool = False,
    online: bool = False,
) -> None:
    """Raise ``ValueError`` if a callback monitors a field that records will not have.

    Nothing is raised if there is a user's own callback, which may add the field.
    """
    modules = [type(callback).__module__ for callback in callbacks]
    has_own_callback = not all(module.startswith("compss_train.") for module in modules)
    for callback in callbacks:
        name = callback.watches()
        if name is not None:
            check_monitored(
                name,
                measures,
                whole,
                monitored_by=type(callback).__name__,
                validated=validated,
                averaged=averaged,
                online=online,
                may_be_added=has_own_callback,
            )


def check_monitored(
    name: str,
    measures: Collection[str],
    whole: Collection[str] = (),
    *,
    monitored_by: str,
    validated: bool,
    averaged: bool = False,
    online: bool = False,
    may_be_added: bool = False,
) -> None:
    """Raise ``ValueError`` unless records will have a field.

    ``whole`` are measured on validation data only. With ``may_be_added``, steps or callbacks may
    add it, but for measures of validation data.
    """
    validating = (*measures, *whole)
    of_validation = [f"val_{measure}" for measure in validating]
    of_validation += [f"val_averaged_{measure}" for measure in validating] if averaged else []
    measured = [*measures, *(of_validation if validated else ())]
    missing = name in of_validation
    if name in (*measured, *(NUMERIC_ONLINE if online else NUMERIC)):
        return
    if may_be_added and not missing:
        return
    hint = "; give fit validation_data=" if missing else validation.suggestion(name, measured)
    raise ValueError(
        f"{monitored_by} monitors {name!r}, but records have no {name!r} but "
        f"{', '.join(measured)}{hint}"
    )


def _is_weight(value: object) -> bool:
    """Return whether a worker can count so much."""
    return isinstance(value, Real) and math.isfinite(value) and float(value) >= 0
