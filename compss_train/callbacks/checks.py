"""Checks of the callbacks that a fit is given, made before any task starts."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Sequence

from compss_train.callbacks.base import Callback
from compss_train.metrics import BOOKKEEPING
from compss_train.nearest import nearest

HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))


def check_callbacks(callbacks: Sequence[object]) -> None:
    """Raise ``TypeError`` for what is no callback, ``ValueError`` for two that write to the same place.

    Warns of methods with a hook's name in other libraries, which nothing would call.
    """
    if isinstance(callbacks, str) or not isinstance(callbacks, Iterable):
        raise TypeError(f"callbacks={callbacks!r}: give a list of callbacks, which may be empty")
    checked = [_checked(callback) for callback in callbacks]
    for callback in checked:
        _warn_of_other_hooks(type(callback))
    _check_places(checked)


def _checked(callback: object) -> Callback:
    if not isinstance(callback, Callback):
        hint = "; call the class to make one" if isinstance(callback, type) else ""
        raise TypeError(f"callbacks= holds {callback!r}, which is no Callback{hint}")
    return callback


def _warn_of_other_hooks(kind: type[Callback]) -> None:
    others = [name for name in dir(kind) if name.startswith("on_") and name not in HOOKS]
    if others:
        warnings.warn(
            f"nothing calls {', '.join(others)} of {kind.__name__}; the hooks of a callback are {', '.join(HOOKS)}",
            stacklevel=4,
        )


def _check_places(callbacks: Iterable[Callback]) -> None:
    owners: dict[object, Callback] = {}
    for callback in callbacks:
        if (place := callback.writes_to()) is None:
            continue
        other = owners.setdefault(place.resolve(), callback)
        if other is not callback:
            raise ValueError(
                f"{type(other).__name__} and {type(callback).__name__} would both write to {place}; "
                "give each its own"
            )


def check_watched(callbacks: Sequence[Callback], measures: Collection[str], *, validated: bool) -> None:
    """Raise ``ValueError`` where one goes by a number that records will not have.

    Unless somebody else's callback is there, which may add it to them.
    """
    held_out = [f"val_{name}" for name in measures]
    known = [*measures, *held_out] if validated else list(measures)
    others = any(not type(callback).__module__.startswith("compss_train.") for callback in callbacks)
    for callback in callbacks:
        name = callback.watches()
        if name is None or name in known or name in BOOKKEEPING or (others and name not in held_out):
            continue
        hint = "; give fit validation_data=" if name in held_out else nearest(name, known)
        raise ValueError(
            f"{type(callback).__name__} goes by {name!r}, but records have no {name!r} but {', '.join(known)}{hint}"
        )
