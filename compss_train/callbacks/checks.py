"""Checks of the callbacks of a fit, before any task starts."""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from compss_train._utils import files, validation
from compss_train.callbacks.progress import with_progress
from compss_train.reports.records import NUMERIC, NUMERIC_ONLINE
from compss_train.training.build_arguments import check_picklable
from compss_train.training.callback import AnyCallback, Callback, CallbackList
from compss_train.training.trainer_base import TrainerBase
from compss_train.worker.callbacks import WorkerCallback

HOOKS, WORKER_HOOKS = (
    tuple(name for name in vars(kind) if name.startswith("on_")) for kind in (Callback, WorkerCallback)
)


def callback_list(
    trainer: TrainerBase, callbacks: Iterable[object], progress: bool, **records: bool
) -> CallbackList:
    """Return the callbacks of a fit, with one that shows the progress unless it is off.

    ``records`` says what records will have, as in ``check_watched``. Raises ``TypeError`` and ``ValueError`` for
    callbacks that the fit cannot use.
    """
    checked = check_callbacks(callbacks)
    warn_of_other_hooks(checked)
    validation.check_choice("progress", progress, (True, False))
    in_workers = [callback for callback in checked if isinstance(callback, WorkerCallback)]
    for callback in in_workers:
        check_picklable(**{type(callback).__name__: callback})
    if in_workers and records.get("online"):
        raise ValueError(f"{type(in_workers[0]).__name__} is a WorkerCallback; fit_online does not call those")
    own = [callback for callback in checked if isinstance(callback, Callback)]
    called = CallbackList(with_progress(own, progress), trainer, in_workers)
    for each in called.all:
        each.check(trainer)
    if not (trainer.measures_in_steps or in_workers):
        check_watched(called.callbacks, trainer.measures, **records)
    return called


def check_callbacks(callbacks: Iterable[object]) -> list[AnyCallback]:
    """Return the callbacks as a list.

    Raises ``TypeError`` for an object that is not a callback, ``ValueError`` for a callback that occurs twice, for
    two callbacks that write to the same path, and for one that would write to an object store and cannot.
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
            raise ValueError(f"{type(callback).__name__} has {path}, but only Checkpoint writes to object stores")
        if (other := owners.setdefault(Path(path).resolve(), callback)) is not callback:
            raise ValueError(
                f"{type(other).__name__} and {type(callback).__name__} would both write to {path}; "
                "give each its own path"
            )
    return checked


def warn_of_other_hooks(callbacks: Iterable[AnyCallback]) -> None:
    """Warn of methods that are named like hooks but are not, as in other libraries: they are never called."""
    for kind in dict.fromkeys(map(type, callbacks)):
        hooks = WORKER_HOOKS if issubclass(kind, WorkerCallback) else HOOKS
        methods = [name for name in dir(kind) if name.startswith("on_") and callable(getattr(kind, name))]
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
            f"{type(callback).__name__} monitors {name!r}, but records have no {name!r} but {', '.join(measured)}"
            f"{hint}"
        )
