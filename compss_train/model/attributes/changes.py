"""What differs from a new copy: the attributes that a worker keeps from round to round."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch

from compss_train.model.attributes.objects import class_of, enum_of
from compss_train.model.attributes.plain_values import KIND, NOT_KEPT, copied, parts
from compss_train.model.attributes.reader import AttributeReader


def changed_attributes(
    before: AttributeReader, after: AttributeReader, worker: int
) -> dict[str, Any]:
    """Return copies on the CPU of what differs from a new copy, and of what refers to it.

    Raises ``TypeError`` for what changed and cannot be kept.
    """
    lost: list[str] = []
    values = {
        path: _keepable(value, before, path, worker, lost) for path, value in after.values.items()
    }
    if lost:
        values = {path: _without_parts_of(lost, value, after) for path, value in values.items()}
    changed = {
        path: value
        for path, value in values.items()
        if path not in before.values or not _is_same(value, before.values[path])
    }
    deleted = [path for path in before.values if path not in values]
    if not changed and not deleted:
        return {}
    kept: dict[str, Any] = {
        path: {KIND: "deleted"} for path in deleted if path.rpartition(".")[0] in after.objects
    }
    for path, value in values.items():
        if path in changed or any(_is_in(part, changed) for part in _references(value)):
            kept[path] = copied(value)
    return kept


def _keepable(value: Any, before: AttributeReader, path: str, worker: int, lost: list[str]) -> Any:
    """Return a plain value in which objects that a new copy does not have are not kept.

    Their paths are added to those that are ``lost``. Raises ``TypeError`` for modules, which cannot
    be left out of a network.
    """
    if isinstance(value, list):
        return [_keepable(item, before, path, worker, lost) for item in value]
    if not isinstance(value, dict):
        return value
    if "path" in value and "class" in value and before.classes.get(value["path"]) != value["class"]:
        if value.get("is_module"):
            raise TypeError(
                f"{path} changed while worker {worker} trained, and a {value['class']} is a module "
                "that no optimizer trains and no state_dict is known to have: make it in __init__, "
                "or before the fit"
            )
        if value[KIND] == "enum" and enum_of(value["class"]) is not None:
            return {name: value[name] for name in value if name != "path"}
        lost.append(value["path"])
        return {KIND: NOT_KEPT, "class": value["class"].partition(" ")[0]}
    if "items" not in value:
        return value
    return {**value, "items": _keepable(value["items"], before, path, worker, lost)}


def _without_parts_of(lost: Collection[str], value: Any, after: AttributeReader) -> Any:
    """Return a plain value in which what is referred to inside of lost objects is not kept."""
    if isinstance(value, list):
        return [_without_parts_of(lost, item, after) for item in value]
    if not isinstance(value, dict):
        return value
    if value[KIND] == "reference" and any(
        value["path"].startswith((f"{path}[", f"{path}.", f"{path} ")) for path in lost
    ):
        return {KIND: NOT_KEPT, "class": class_of(after.objects[value["path"]])}
    if "items" not in value:
        return value
    return {**value, "items": _without_parts_of(lost, value["items"], after)}


def _references(plain: Any) -> list[str]:
    return [part["path"] for part in parts(plain) if part[KIND] == "reference"]


def _is_in(path: str, changed: Mapping[str, Any]) -> bool:
    """Return whether a path is that of a changed value, or inside of one."""
    return any(path == other or path.startswith((f"{other}[", f"{other}.")) for other in changed)


def _is_same(first: Any, second: Any) -> bool:
    """Return whether two plain values are the same, in type and bits."""
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        names = first.keys() - {"on_device"}  # new copies are on the CPU
        return names == second.keys() - {"on_device"} and all(
            _is_same(first[name], second[name]) for name in names
        )
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(_is_same, first, second))
    if isinstance(first, torch.Tensor):
        alike = (first.shape, first.dtype) == (second.shape, second.dtype)
        return alike and torch.equal(first.to(second.device), second)
    if isinstance(first, np.ndarray):
        return first.dtype == second.dtype and np.array_equal(first, second)
    return bool(first == second)
