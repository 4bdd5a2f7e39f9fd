"""Descriptions of arguments as plain values, readable and valid in JSON: ``trainer.configuration``."""

import importlib.metadata
import math
import platform
import re
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from compss_train._utils import __version__
from compss_train.training.build_arguments import BuildArguments
from compss_train.training.details import stable_name

MOST_ITEMS = 100
"""Maximum number of items of a list or dict; larger ones are described by their size."""
MOST_CHARACTERS = 500
"""Maximum length of a value's ``repr``; networks are given in full."""
DEEPEST = 8
"""Maximum nesting of lists and dicts; deeper ones are described by their type."""


def described(value: object, depth: int = 0) -> Any:
    """Return a description made of dicts, lists, strings and finite numbers.

    Functions and classes are given by qualified name, arrays by type and shape, dataclasses by their fields (except
    those with ``repr=False``, which are secrets), networks in full, and everything else by its ``repr``.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, np.generic):
        return described(value.item(), depth)
    if isinstance(value, np.ndarray | torch.Tensor):
        return f"{type(value).__name__} of {str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, Enum):
        return value.name
    depth += 1
    if depth > DEEPEST:
        return _named(value)
    if is_dataclass(value) and not isinstance(value, type):
        return described_fields(value, depth)
    if isinstance(value, Mapping | list | tuple | Set):
        if len(value) > MOST_ITEMS:
            return f"{type(value).__name__} of {len(value)} items"
        if isinstance(value, Mapping):
            return {str(key): described(item, depth) for key, item in value.items()}
        return [described(item, depth) for item in value]
    if isinstance(value, partial):
        arguments: dict[Any, Any] = {**dict(enumerate(value.args)), **value.keywords}
        return {"function": _named(value.func), "arguments": described(arguments, depth)}
    return _named(value)


def _named(value: Any) -> str:
    if isinstance(value, nn.Module):
        return str(value)
    if callable(value) and hasattr(value, "__qualname__"):
        module = getattr(value, "__module__", "torch")  # methods of torch's own type of tensors have none
        return stable_name(f"{module}.{value.__qualname__}")
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + "…"


def described_fields(value: Any, depth: int = 0) -> dict[str, Any]:
    """Return the description of each field of a dataclass, except those with ``repr=False``."""
    return {each.name: described(getattr(value, each.name), depth) for each in fields(value) if each.repr}


def described_build(built: BuildArguments) -> dict[str, Any]:
    """Return the description of the arguments of ``build``."""
    training_spec = described_fields(built.training_spec)
    count = sum(parameter.numel() for parameter in built.training_spec.net.parameters())
    others = {name: value for name, value in described_fields(built).items() if name != "training_spec"}
    return {
        "net": training_spec.pop("net"),
        "parameters": count,
        **training_spec.pop("gradients"),
        **training_spec,
        **others,
    }


def described_fit(method: str, options: object, callbacks: Sequence[object], **data: object) -> dict[str, Any]:
    """Return the description of a fit that starts now."""
    return {
        "method": method,
        "started": time.time(),
        **described_fields(options),
        **{name: described(value) for name, value in data.items()},
        "callbacks": [name for name in (type(each).__qualname__ for each in callbacks) if not name.startswith("_")],
    }


def versions() -> dict[str, str]:
    """Return the versions of Python, of this package, of torch and of numpy."""
    found = {"python": platform.python_version(), "compss_train": __version__}
    return found | {name: importlib.metadata.version(name) for name in ("torch", "numpy")}
