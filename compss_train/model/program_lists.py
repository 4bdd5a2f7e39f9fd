"""Lists of the program that a function fills in its tasks: the program's own ones stay empty.

A function of the user may append to a list of the function around it. Workers keep their own copy
of the list, so that the loop of a program that reads it after the fit finds nothing there.
"""

import sys
from collections.abc import Mapping
from types import FrameType, FunctionType
from typing import Any

import torch

from compss_train.model.attributes.plain_values import KIND
from compss_train.model.copies import filled_cells


def grown_lists(
    roots: Mapping[str, Any], before: Mapping[str, Any], kept: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Return the lists of numbers to which functions have appended, each by root and variable.

    ``before`` are the attributes of a new copy, ``kept`` those that a worker has changed.
    """
    grown = []
    for root_name, root in roots.items():
        if not isinstance(root, FunctionType):
            continue
        for variable in root.__code__.co_freevars:
            path = f"{root_name}.{variable}"
            new = _items_of(kept.get(path))
            old = _items_of(before.get(path))
            if len(new) > len(old) and all(map(_is_number, new)):
                grown.append((root_name, variable))
    return grown


def _items_of(plain: Any) -> list[Any]:
    """Return the items of a plain value, if it stands for a list."""
    is_list = isinstance(plain, dict) and plain.get(KIND) == "list"
    return plain["items"] if is_list else []


def _is_number(plain: Any) -> bool:
    if isinstance(plain, dict):
        value = plain.get("value")
        return isinstance(value, torch.Tensor) and value.numel() == 1
    return isinstance(plain, int | float)


def list_warning(root_name: str, root: Any, variable: str) -> str | None:
    """Return a warning of a list that the program may read, or ``None`` if it cannot.

    It can if a function that is running, and calls the fit, has the variable.
    """
    contents = filled_cells(root).get(variable)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        is_variable = variable in frame.f_code.co_cellvars
        if is_variable and frame.f_locals.get(variable) is contents:
            return (
                f"{root_name}= appends to the list {variable!r} of {frame.f_code.co_name}, which "
                "stays as it is: each worker has its own, as in a process of its own. Return the "
                "numbers instead, from a step {'loss': loss, 'name': number}, or as metric=; "
                "trainer.history then has their means, and a WorkerCallback sees each batch"
            )
        frame = frame.f_back
    return None
