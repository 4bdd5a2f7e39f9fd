"""Checks of the callbacks that a fit is given, made before any task starts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

from compss_train._utils.files import is_no_file
from compss_train._utils.validation import suggestion, warn_user
from compss_train.reports.records import NUMERIC, NUMERIC_ONLINE
from compss_train.training.callback import Callback

HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))

_MOMENTS = ("epoch", "train", "batch", "step", "validation", "test", "predict", "evaluate", "fit", "round")
"""What hooks of Keras, Lightning and others are named for."""


def check_callbacks(callbacks: Iterable[object]) -> list[Callback]:
    """Return the callbacks.

    Raises ``TypeError`` for what is no callback, ``ValueError`` for one that is there twice, and for two that write
    to the same place.
    """
    if isinstance(callbacks, str) or not isinstance(callbacks, Iterable):
        raise TypeError(f"callbacks={callbacks!r}: give a list of callbacks, which may be empty")
    checked = [_checked(callback) for callback in callbacks]
    for place, callback in enumerate(checked):
        if any(callback is other for other in checked[:place]):
            raise ValueError(f"callbacks= holds the same {type(callback).__name__} twice")
    _check_places(checked)
    return checked


def _checked(callback: object) -> Callback:
    if not isinstance(callback, Callback):
        hint = "; call the class to make one" if isinstance(callback, type) else ""
        raise TypeError(f"callbacks= holds {callback!r}, which is no Callback{hint}")
    return callback


def _check_places(callbacks: Iterable[Callback]) -> None:
    owners: dict[Path, Callback] = {}
    for callback in callbacks:
        given = callback.writes_to()
        if given is None or is_no_file(Path(given)):
            continue
        other = owners.setdefault(Path(given).resolve(), callback)
        if other is not callback:
            raise ValueError(
                f"{type(other).__name__} and {type(callback).__name__} would both write to {given}; "
                "give each its own"
            )


def warn_of_other_hooks(callbacks: Iterable[Callback]) -> None:
    """Warn of methods with the names of other libraries' hooks, or nearly those of ours: nothing calls them."""
    for kind in dict.fromkeys(map(type, callbacks)):
        if others := list(_other_hooks(kind)):
            warn_user(
                f"fits do not call {', '.join(others)} of {kind.__name__}; the hooks of a callback are "
                f"{', '.join(HOOKS)}"
            )


def _other_hooks(kind: type[Callback]) -> Iterator[str]:
    for name in dir(kind):
        if not name.startswith("on_") or name in HOOKS or not callable(getattr(kind, name)):
            continue
        if not set(_MOMENTS).isdisjoint(name.split("_")) or get_close_matches(name, HOOKS, 1, 0.8):
            yield name


def check_watched(
    callbacks: Sequence[Callback], measures: Collection[str], *, validated: bool, online: bool = False
) -> None:
    """Raise ``ValueError`` where one goes by a number that records will not have.

    Unless somebody's own callback is told before it, which may add the number.
    """
    held_out = [f"val_{name}" for name in measures]
    measured = [*measures, *held_out] if validated else list(measures)
    counted = NUMERIC_ONLINE if online else NUMERIC
    for place, callback in enumerate(callbacks):
        name = callback.watches()
        if name is None or name in measured or name in counted:
            continue
        missing = name in held_out
        if not missing and any(map(_is_own, callbacks if callback.keeps_state else callbacks[:place])):
            continue
        hint = "; give fit validation_data=" if missing else suggestion(name, measured)
        raise ValueError(
            f"{type(callback).__name__} goes by {name!r}, but records have no {name!r} but {', '.join(measured)}"
            f"{hint}"
        )


def _is_own(callback: Callback) -> bool:
    """Tell whether it is somebody's own."""
    return not type(callback).__module__.startswith("compss_train.")
