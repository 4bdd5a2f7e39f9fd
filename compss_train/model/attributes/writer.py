"""``AttributeWriter``: sets the attributes of objects to what plain values stand for."""

from collections import deque
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import nn

from compss_train.model.attributes.objects import enum_of
from compss_train.model.attributes.plain_values import (
    CONTAINER_TYPES,
    KIND,
    NOT_KEPT,
    needed_paths,
    set_generator,
)
from compss_train.model.attributes.reader import HOOKS, AttributeReader, key_in_path
from compss_train.model.devices import copy_into
from compss_train.model.not_kept import NotKept


class AttributeWriter:
    """Sets the attributes of objects, and of all that these hold.

    Parameters
    ----------
    reader:
        What has read the objects.
    device:
        Where tensors get that were on a worker's device.
    """

    def __init__(self, reader: AttributeReader, device: str) -> None:
        self._reader = reader
        self._device = device

    def set(self, kept: Mapping[str, Any]) -> None:
        """Set attributes to copies of values that ``changed_attributes`` returned.

        Containers, and tensors of the same shape and dtype, keep their memory, unless a parameter
        has it, too, as in a new network with ``torch.nn.utils.spectral_norm``. Paths of objects
        that are gone are left out: whoever restores a checkpoint with other objects is warned of
        them. Raises ``TypeError`` where hooks have been registered or removed meanwhile.
        """
        objects = self._reader.objects
        for path, plain in kept.items():
            if path.endswith(HOOKS):
                raise TypeError(_changed_hooks(path.removesuffix(HOOKS), plain))
            owner, name = self._owner_of(path)
            if owner is None or any(part not in objects for part in needed_paths(plain)):
                continue
            is_mapping = isinstance(owner, MutableMapping)
            if plain == {KIND: "deleted"}:
                if is_mapping:
                    owner.pop(name, None)
                elif hasattr(owner, name):
                    object.__delattr__(owner, name)
                continue
            current = _current(owner, name)
            value = self._restored(plain, current, path)
            if is_mapping:
                owner[name] = value
            else:
                object.__setattr__(owner, name, value)

    def _owner_of(self, path: str) -> tuple[Any, str]:
        """Return what holds the attribute of a path, or will hold it, and its name there."""
        if path in self._reader.owners:
            return self._reader.owners[path]
        owner_path, _, name = path.rpartition(".")
        owner = self._reader.objects.get(owner_path)
        return (vars(owner) if hasattr(owner, "__dict__") else owner), name

    def _restored(self, plain: Any, current: Any, path: str) -> Any:
        """Return the value that a plain one stands for, in the memory of the current one."""
        if not isinstance(plain, dict):
            return plain
        if self._reader.is_elsewhere(current, path):  # also a buffer that was replaced since
            current = None
        kind = plain[KIND]
        if kind in ("dtype", "layout", "memory_format"):
            return getattr(torch, plain["value"])
        if kind == "enum" and "path" not in plain:
            members = enum_of(plain["class"])
            return NotKept(path, plain["class"]) if members is None else members[plain["name"]]
        if kind == "device":
            return torch.device(plain["value"])
        if kind in ("slice", "range"):
            return (slice if kind == "slice" else range)(*plain["items"])
        if kind in ("bytes", "complex"):
            data = plain["value"].tobytes()
            return data if kind == "bytes" else complex(np.frombuffer(data, complex)[0])
        if kind in CONTAINER_TYPES:
            value = self._restored_container(plain, current, path)
        elif kind == "tensor":
            if isinstance(current, torch.Tensor) and self._reader.is_in_merged_memory(current):
                current = None
            value = _restored_tensor(plain, current, self._device)
        elif kind == "array":
            value = np.array(plain["value"])
        elif kind == NOT_KEPT:
            value = NotKept(path, plain["class"])
        else:
            value = self._reader.objects.get(plain["path"])
            if value is None:
                raise ValueError(
                    f"{path} was kept with a reference to {plain['path']}, which is not there now; "
                    "go on with the network of that fit, or start with a new optimizer by "
                    "Merge(optimizer_state='reset')"
                )
            if kind == "enum":
                return type(value)[plain["name"]]
            if kind == "generator":
                set_generator(value, plain["value"])
            return value
        self._reader.note(value, path)
        return value

    def _restored_container(self, plain: Mapping[str, Any], current: Any, path: str) -> Any:
        kind = CONTAINER_TYPES[plain[KIND]]
        if "path" in plain:  # a subclass, whose object a new copy has
            current = self._reader.objects[plain["path"]]
        is_current = isinstance(current, kind) and (type(current) is kind or "path" in plain)
        if issubclass(kind, dict):
            pairs = []
            for plain_key, plain_item in plain["items"]:
                key = self._restored(plain_key, None, f"{path} key")
                item = current.get(key) if is_current else None
                item_path = f"{path}[{key_in_path(key)}]"
                pairs.append((key, self._restored(plain_item, item, item_path)))
            mapping = current if is_current else kind()
            mapping.clear()
            mapping.update(pairs)
            return mapping
        is_ordered = kind not in (set, frozenset)
        before = [*current] if is_current and is_ordered else []
        items = []
        for number, plain_item in enumerate(plain["items"]):
            item_path = f"{path}[{number}]" if is_ordered else f"{path} item"
            item = before[number] if number < len(before) else None
            items.append(self._restored(plain_item, item, item_path))
        if kind is deque and not is_current:
            return deque(items, plain["maxlen"])
        if "path" in plain and isinstance(current, tuple):
            return current._make(items) if hasattr(current, "_make") else type(current)(items)
        if not is_current or kind in (tuple, frozenset, torch.Size):
            return kind(items)
        current.clear()
        current.update(items) if kind is set else current.extend(items)
        return current


def _changed_hooks(owner: str, plain: Any) -> str:
    """Return the message for a module or tensor with hooks that its new copies have not."""
    names = "none" if isinstance(plain, dict) else plain
    return (
        f"batches have registered or removed hooks of {owner}, which had {names} after them, and "
        "the next round has those of the network given to build: register hooks before build, or "
        "remove each in the batch that registers it; where the network registers them in its "
        "first batch, run one through it before build"
    )


@torch.no_grad()
def _restored_tensor(plain: Mapping[str, Any], current: Any, device: str) -> torch.Tensor:
    value: torch.Tensor = plain["value"]
    is_alike = (
        isinstance(current, torch.Tensor)
        and (current.shape, current.dtype) == (value.shape, value.dtype)
        and isinstance(current, nn.Parameter) == plain["parameter"]
    )
    if is_alike:
        copy_into(current, value)
        kept: torch.Tensor = current
        return kept
    moved = value.to(device if plain["on_device"] else "cpu", copy=True)
    return nn.Parameter(moved) if plain["parameter"] else moved


def _current(owner: Any, name: str) -> Any:
    """Return the value that a mapping, cell or object has now, or ``None``."""
    if isinstance(owner, MutableMapping):
        return owner.get(name)
    with suppress(ValueError):  # of an empty cell
        return getattr(owner, name, None)
    return None
