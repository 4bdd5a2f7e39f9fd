"""``details``: what tells apart two objects of one class, or two functions of one name.

A resume and ``compss-train compare`` compare it, so that another dropout or another loss is not taken for the same.
"""

import functools
import hashlib
import math
import re
import sys
from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from compss_train._utils.nested import leaves
from compss_train._utils.private_names import own_tensors
from compss_train.data.block import flat_bytes

Plain: TypeAlias = bool | int | float | str | None
Details: TypeAlias = dict[str, Plain]
"""Plain values by dotted names, such as ``loss.label_smoothing``."""

MOST_ITEMS = 100
"""Maximum number of values in a list, dict or object; of more there is a hash."""
DEEPEST = 8
"""Maximum nesting of values that are no modules."""
CODE = f"code in Python {sys.version_info.major}.{sys.version_info.minor}"
"""The name of the hash of a function's code, which versions of Python compile differently."""
_EMPTY = CellType()
_INSTALLED = ("site-packages", "dist-packages", "<frozen")
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
"""Attributes that hold parameters, buffers, submodules, hooks and the mode."""


def stable_name(name: str) -> str:
    """Return the name of a function or class; this package's names omit the module, which may change."""
    return re.sub(r"^compss_train\.(?:\w+\.)*(?=\w+(?:\(|$))", "compss_train.", name)


def details(name: str, value: object, *, tensors: bool = True) -> Details:
    """Return classes, plain attributes and constructor arguments of an object, and of what it is made of.

    Functions have a hash of their code, and the values in their closures and defaults; arrays, and the tensors in a
    module's state_dict, a hash unless ``tensors`` is false, as for a network that is trained. Other tensors of a
    module are left out: they may be caches.
    """
    collector = _Collector(tensors)
    return collector.of(name, value, 0)


class _Collector:
    """Collects details; an object that occurs again has none."""

    def __init__(self, tensors: bool) -> None:
        self._tensors = tensors
        self._seen: dict[int, object] = {}

    def of(self, name: str, value: Any, depth: int) -> Details:
        """Return the details of a value, at a depth of nesting."""
        if isinstance(value, bool | int | str | None):
            return {name: value}
        if isinstance(value, float):
            return {name: value if math.isfinite(value) else str(value)}
        if isinstance(value, np.generic):
            return self.of(name, value.item(), depth)
        if isinstance(value, torch.Tensor | np.ndarray):
            return {name: _array_hash(value)} if self._tensors else {}
        if isinstance(value, Enum | torch.dtype | torch.device):
            return {name: str(value)}
        if isinstance(value, type | BuiltinFunctionType):
            return {name: _full_name(value)}
        if id(value) in self._seen or depth > DEEPEST:
            return {}
        self._seen[id(value)] = value  # kept, so that no other object gets its id
        if isinstance(value, FunctionType):
            return self._of_function(name, value, depth)
        if isinstance(value, MethodType):
            return self.of(name, value.__func__, depth) | self._limited(name, {"self": value.__self__}, depth)
        if isinstance(value, functools.partial):
            given: dict[Any, Any] = {**dict(enumerate(value.args)), **value.keywords}
            return self.of(name, value.func, depth) | self._limited(name, given, depth)
        if isinstance(value, nn.Module):
            return self._of_module(name, value, depth)
        if isinstance(value, Mapping):
            return self._limited(name, value, depth)
        if isinstance(value, Set):
            return self._limited(name, dict(enumerate(sorted(value, key=repr))), depth)
        if isinstance(value, list | tuple):
            return self._limited(name, dict(enumerate(value)), depth)
        secrets = [each.name for each in fields(value) if not each.repr] if is_dataclass(value) else []
        shown = {key: own for key, own in getattr(value, "__dict__", {}).items() if key not in secrets}
        return {name: _full_name(type(value)), **self._limited(name, shown, depth)}

    def _limited(self, name: str, values: Mapping[Any, Any], depth: int) -> Details:
        found: Details = {}
        for key, value in values.items():
            found |= self.of(f"{name}.{key}", value, depth + 1)
        if len(found) > MOST_ITEMS:
            return {f"{name}.all": f"{len(found)} values, {_hash(repr(found).encode())}"}
        return found

    def _of_module(self, name: str, module: nn.Module, depth: int) -> Details:
        own = {key: value for key, value in vars(module).items() if key not in _OF_EVERY_MODULE}
        computed = [key for key in own if any(isinstance(each, torch.Tensor) for each in leaves(own[key]))]
        plain = {key: value for key, value in own.items() if key not in computed}
        found = {name: _full_name(type(module)), **self._limited(name, plain, depth)}
        if self._tensors:
            found |= self._limited(name, own_tensors(module), depth)
        for key, child in module.named_children():
            found |= self.of(f"{name}.{key}", child, depth)
        return found

    def _of_function(self, name: str, function: FunctionType, depth: int) -> Details:
        found: Details = {name: _full_name(function)}
        code = function.__code__
        if function.__module__.startswith("compss_train.") or any(each in code.co_filename for each in _INSTALLED):
            return found
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        closure = {key: cell.cell_contents for key, cell in cells if cell != _EMPTY}
        defaults: dict[Any, Any] = {
            **dict(enumerate(function.__defaults__ or ())),
            **(function.__kwdefaults__ or {}),
        }
        return {**found, f"{name}.{CODE}": _code_hash(code), **self._limited(name, {**closure, **defaults}, depth)}


def _full_name(value: Any) -> str:
    module = getattr(value, "__module__", None) or "torch"  # methods of torch's own type of tensors have none
    return stable_name(f"{module}.{value.__qualname__}")


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def _array_hash(array: torch.Tensor | np.ndarray[Any, Any]) -> str:
    if isinstance(array, np.ndarray):
        data = b"" if array.dtype.hasobject else array.tobytes()
    else:
        is_plain = array.layout == torch.strided and not (array.is_meta or array.is_quantized)
        data = flat_bytes(array.detach().cpu().contiguous()).numpy().tobytes() if is_plain else b""
    return f"{str(array.dtype).removeprefix('torch.')} {tuple(array.shape)} {_hash(data)}"


def _code_hash(code: CodeType) -> str:
    """Return a hash of what code does, without names of files and numbers of lines."""
    constants: list[object] = []
    for each in code.co_consts:
        nested = _code_hash(each) if isinstance(each, CodeType) else each
        constants.append(sorted(map(repr, nested)) if isinstance(nested, Set) else nested)
    return _hash(repr((code.co_code, code.co_names, constants)).encode())
