"""Finds out which part of an object cannot be sent to other processes, or copied."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from compss_train.engines.codec import pickling_error

TOO_DEEP = "contains itself, or is nested too deeply for Python"
"""What is said of an object that Python cannot pickle or copy for its depth."""


def check_picklable(**values: object) -> None:
    """Raise ``TypeError`` for the first value that cannot be pickled, naming the attribute."""
    for name, value in values.items():
        error = pickling_error(value)
        if error is None:
            continue
        if isinstance(error, RecursionError) or "recursion" in str(error):
            raise TypeError(f"{name} {TOO_DEEP}, and cannot be sent to other processes")
        where = _culprit(name, value, pickling_error) or name
        raise TypeError(
            f"{where} cannot be pickled, so it cannot be sent to other processes ({error}); "
            "create it on first use, as in forward or __getitem__, or exclude it in "
            "__getstate__"
        )


def check_copyable(**values: object) -> None:
    """Raise ``TypeError`` for the first value that cannot be copied, naming the attribute."""
    for name, value in values.items():
        error = _copying_error(value)
        if error is not None:
            where = _culprit(name, value, _copying_error) or name
            raise TypeError(
                f"{where} cannot be copied ({error}), and each worker has a copy: let "
                "copy.deepcopy work with it, such as by __getnewargs__ or __deepcopy__"
            ) from error


def _copying_error(value: object) -> Exception | None:
    """Return what keeps a value from being copied, if anything does."""
    try:
        copy.deepcopy(value)
    except Exception as error:
        return error
    return None


def _culprit(
    name: str,
    value: object,
    error_of: Callable[[object], Exception | None],
    seen: frozenset[int] = frozenset(),
) -> str | None:
    """Return the path and type of the innermost part that has an error.

    Returns ``None`` if the only such parts refer back to a value in ``seen``.
    """
    failing = [(part, inner) for part, inner in _parts(value) if error_of(inner) is not None]
    if not failing:
        return f"{name} ({type(value).__module__}.{type(value).__qualname__})"
    seen |= {id(value)}
    for part, inner in failing:
        if id(inner) not in seen:
            culprit = _culprit(name + part, inner, error_of, seen)
            if culprit is not None:
                return culprit
    return None


def _parts(value: object) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{index}]", item) for index, item in enumerate(value))
    elif not isinstance(value, type):
        if isinstance(value, nn.Module):
            yield from ((f".{key}", child) for key, child in value.named_children())
        yield from (
            (f".{key}", item)
            for key, item in getattr(value, "__dict__", {}).items()
            if key != "_modules"
        )
