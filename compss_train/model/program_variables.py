"""Variables of the program that a function changes in its tasks: the program's own stay.

A function of the user may append to a list of the function around it, or count in one of its
variables. Workers keep their own copies, so that a program that reads the variable after the fit
finds nothing new there.
"""

import sys
from collections.abc import Iterable, Mapping
from types import FrameType, FunctionType
from typing import Any

import torch

from compss_train._utils.validation import warn_user
from compss_train.model.attributes.plain_values import KIND
from compss_train.model.copies import filled_cells


def changed_variables(
    roots: Mapping[str, Any], before: Mapping[str, Any], kept: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Return the variables of functions with new numbers, each by root and name.

    Numbers were appended to a list, or the variable is a number. ``before`` are the attributes of a
    new copy, ``kept`` those that a worker has changed.
    """
    changed = []
    for root_name, root in roots.items():
        if not isinstance(root, FunctionType):
            continue
        for variable in root.__code__.co_freevars:
            path = f"{root_name}.{variable}"
            if path in kept and _has_new_numbers(before.get(path), kept[path]):
                changed.append((root_name, variable))
    return changed


def _has_new_numbers(old: Any, new: Any) -> bool:
    """Return whether a plain value stands for another number, or a longer list of numbers."""
    if not _is_list(new):
        return _is_number(new)
    old_length = len(old["items"]) if _is_list(old) else 0
    return len(new["items"]) > old_length and all(map(_is_number, new["items"]))


def _is_list(plain: Any) -> bool:
    return isinstance(plain, dict) and plain.get(KIND) == "list"


def _is_number(plain: Any) -> bool:
    if isinstance(plain, dict):
        value = plain.get("value")
        return isinstance(value, torch.Tensor) and value.numel() == 1
    return isinstance(plain, int | float)


def warn_of_variables(roots: Mapping[str, Any], changed: Iterable[tuple[str, str]]) -> None:
    """Warn of changed variables, each by root and name, as far as the program may read them."""
    for root_name, variable in changed:
        warning = _warning(root_name, roots.get(root_name), variable)
        if warning is not None:
            warn_user(warning)


def _warning(root_name: str, root: Any, variable: str) -> str | None:
    """Return a warning of a variable that the program may read, or ``None`` if it cannot.

    It can if a function that is running, and calls the fit, has the variable.
    """
    cells = filled_cells(root) if isinstance(root, FunctionType) else {}
    if variable not in cells:
        return None
    contents = cells[variable]
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        is_variable = variable in frame.f_code.co_cellvars
        if is_variable and frame.f_locals.get(variable) is contents:
            change = "appends to the list" if isinstance(contents, list) else "changes the variable"
            return (
                f"{root_name}= {change} {variable!r} of {frame.f_code.co_name}, which stays as it "
                "is: each worker has its own, as in a process of its own. Return the numbers "
                "instead, from a step {'loss': loss, 'name': number}, or as metric=; "
                "trainer.history then has their means, and a WorkerCallback sees each batch"
            )
        frame = frame.f_back
    return None
