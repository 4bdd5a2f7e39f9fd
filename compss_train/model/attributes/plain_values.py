"""Plain values, which checkpoints hold: what stands for what an object keeps.

Numbers, text and ``None`` stand for themselves; a dict stands for anything else, and says with its
``KIND`` for what. Those of objects and references have a ``"path"``, those of containers have
``"items"``.
"""

import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

KIND = "kind"
"""The key that says what a plain value stands for."""

SCALARS = (type(None), bool, int, float, str, np.generic)
"""What stands for itself."""

NAMES_OF_TORCH = torch.dtype | torch.layout | torch.memory_format
"""The types of values that torch has a name for."""

CONTAINERS: Mapping[type[Any], str] = {
    list: "list",
    tuple: "tuple",
    set: "set",
    frozenset: "frozenset",
    deque: "deque",
    dict: "dict",
    defaultdict: "defaultdict",
    OrderedDict: "OrderedDict",
    Counter: "Counter",
    torch.Size: "Size",
}
"""The kinds of containers by types."""

CONTAINER_TYPES: Mapping[str, Any] = {name: container for container, name in CONTAINERS.items()}
"""The types of containers by kinds."""

NOT_KEPT = "not kept"
"""The kind of an object that a ``NotKept`` stands for."""


def parts(plain: Any) -> list[dict[str, Any]]:
    """Return all dicts in a plain value that stand for something."""
    if isinstance(plain, list):
        return [part for item in plain for part in parts(item)]
    if not isinstance(plain, dict):
        return []
    return [plain, *parts(plain.get("items"))]


def needed_paths(plain: Any) -> list[str]:
    """Return the paths of objects outside of a plain value that it needs, as new copies have."""
    return [part["path"] for part in parts(plain) if "path" in part and part[KIND] != "reference"]


def is_kept_whole(plain: Any) -> bool:
    """Return whether a plain value has no part that was not kept."""
    return not any(part.get(KIND) == NOT_KEPT for part in parts(plain))


def references(values: Mapping[str, Any]) -> list[str]:
    """Return the paths of all objects that plain values refer to."""
    return [part["path"] for value in values.values() for part in parts(value) if "path" in part]


def copied(plain: Any) -> Any:
    """Return a copy of a plain value with its tensors on the CPU."""
    if isinstance(plain, dict):
        if plain.get(KIND) == "tensor":
            tensor = plain["value"]
            on_device = tensor.device.type != "cpu"
            return {**plain, "value": tensor.to("cpu", copy=True), "on_device": on_device}
        return {name: copied(value) for name, value in plain.items()}
    if isinstance(plain, list | tuple):
        return type(plain)(copied(item) for item in plain)
    return plain.copy() if isinstance(plain, np.ndarray) else plain


def state_of_generator(value: Any) -> Any:
    """Return the state of a random number generator as a plain value, or ``None`` for others."""
    if isinstance(value, torch.Generator):
        return {"torch": value.get_state()}
    if isinstance(value, random.Random) and type(value) is random.Random:
        version, numbers, gauss = value.getstate()
        return {"version": version, "numbers": np.array(numbers, np.int64), "gauss": gauss}
    if isinstance(value, np.random.Generator):
        return {"numpy": value.bit_generator.state}
    if isinstance(value, np.random.RandomState):
        return {"numpy": value.get_state(legacy=False)}
    return None


def set_generator(value: Any, state: Mapping[str, Any]) -> None:
    """Set a random number generator to a state that ``state_of_generator`` returned."""
    if isinstance(value, torch.Generator):
        value.set_state(state["torch"])
    elif isinstance(value, random.Random):
        numbers = tuple(state["numbers"].tolist())
        value.setstate((state["version"], numbers, state["gauss"]))
    elif isinstance(value, np.random.Generator):
        value.bit_generator.state = state["numpy"]
    else:
        value.set_state(state["numpy"])
