"""``Coding``: what the numbers of x and y mean, which all data of a network have in common."""

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np

Coding: TypeAlias = dict[str, tuple[Any, ...]]
"""What the numbers of data mean: the order of columns, and the classes that became codes."""


def columns_key(name: str) -> str:
    """Return what a ``Coding`` calls the order of the columns of x or y."""
    return f"the columns of {name}"


def classes_key(name: str, column: str | None = None) -> str:
    """Return what a ``Coding`` calls the classes of x or y, or of one of several columns there."""
    return f"the classes of {name}" if column is None else f"the classes of {column!r} in {name}"


def plain_classes(classes: Iterable[Any]) -> tuple[str | float, ...]:
    """Return classes as text and numbers, which checkpoints can hold and programs can compare."""
    values = (value.item() if isinstance(value, np.generic) else value for value in classes)
    return tuple(value if isinstance(value, str | int | float) else str(value) for value in values)
