"""Descriptions of objects as plain values.

``described`` says what they are, ``details`` what tells two apart. ``trainer.configuration`` has
both. A resume and ``compss-train compare`` compare details, so that another dropout or another loss
is not taken for the same.
"""

import functools
import hashlib
import importlib.metadata
import math
import platform
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

from compss_train._utils import __version__
from compss_train._utils.installed import is_installed
from compss_train._utils.nested import leaves
from compss_train._utils.private_names import own_tensors
from compss_train.data.block_bytes import flat_bytes

Plain: TypeAlias = bool | int | float | str | None
Details: TypeAlias = dict[str, Plain]
"""Plain values by dotted names, such as ``loss.label_smoothing``."""

MOST_ITEMS = 100
"""Maximum number of items of a list, dict or object.

Larger ones are described by their size, or have a hash.
"""
MOST_CHARACTERS = 500
"""Maximum length of a value's ``repr``; networks are given in full."""
DEEPEST = 8
"""Maximum nesting, of which submodules are no level.

Deeper values are described by their type, and have no details.
"""
CODE = f"code in Python {sys.version_info.major}.{sys.version_info.minor}"
"""The name of the hash of a function's code, which versions of Python compile differently."""
_EMPTY = CellType()
_GRAPHS = "torch.fx.graph"
"""The module of graphs, which hold also what differs from trace to trace of the same network."""
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
"""Attributes that hold parameters, buffers, submodules, hooks and the mode."""


def stable_name(name: str) -> str:
    """Return the name of a function or class; ours are without the module, which may change."""
    return re.sub(r"^compss_train\.(?:\w+\.)*(?=\w+(?:\(|$))", "compss_train.", name)


def _full_name(value: Any) -> str:
    return stable_name(f"{getattr(value, '__module__', None) or 'torch'}.{value.__qualname__}")


def _as_plain(value: Any) -> tuple[Plain] | None:
    """Return a number, text or ``None`` as JSON has it, alone in a tuple; else ``None``."""
    if isinstance(value, np.generic):
        return _as_plain(value.item())
    if isinstance(value, float):
        return (value if math.isfinite(value) else str(value),)
    return (value,) if isinstance(value, bool | int | str | None) else None


def _items(value: Any) -> Mapping[Any, Any] | None:
    """Return what a container or partial function holds, by key or number; else ``None``."""
    if isinstance(value, functools.partial):
        return {**dict(enumerate(value.args)), **value.keywords}
    if isinstance(value, Mapping):
        return _by_name(value)
    if isinstance(value, Set):
        return dict(enumerate(sorted(value, key=_named)))
    return dict(enumerate(value)) if isinstance(value, list | tuple) else None


def _by_name(mapping: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the items of a mapping by names of its keys, which are the same in each process."""
    items: dict[str, Any] = {}
    for number, (key, item) in enumerate(mapping.items()):
        is_text = _as_plain(key) is not None or isinstance(key, Enum)
        name = str(key) if is_text else _named(key)
        items[f"{name} {number}" if name in items else name] = item
    return items


def described(value: object, depth: int = 0) -> Any:
    """Return a description made of dicts, lists, strings and finite numbers.

    Functions and classes are given by qualified name, arrays by type and shape, dataclasses by
    their fields (except those with ``repr=False``, which are secrets), networks in full, and
    everything else by its ``repr``.
    """
    plain = _as_plain(value)
    if plain is not None:
        return plain[0]
    if isinstance(value, np.ndarray | torch.Tensor):
        return f"{type(value).__name__} of {_dtype_name(value)} {tuple(value.shape)}"
    if isinstance(value, Enum):
        return value.name
    depth += 1
    if depth > DEEPEST:
        return _named(value)
    if is_dataclass(value) and not isinstance(value, type):
        return described_fields(value, depth)
    if isinstance(value, Mapping | Set | list | tuple) and len(value) > MOST_ITEMS:
        return f"{type(value).__name__} of {len(value)} items"
    items = _items(value)
    if items is None:
        return _named(value)
    if isinstance(value, functools.partial):
        return {"function": _named(value.func), "arguments": described(items, depth)}
    descriptions = {str(key): described(item, depth) for key, item in items.items()}
    return descriptions if isinstance(value, Mapping) else list(descriptions.values())


def _named(value: Any) -> str:
    if isinstance(value, nn.Module):
        return str(value)
    if callable(value) and hasattr(value, "__qualname__"):
        return _full_name(value)
    text = _without_addresses(repr(value))
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + "…"


def _without_addresses(text: str) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def described_fields(value: Any, depth: int = 0) -> dict[str, Any]:
    """Return the description of each field of a dataclass, except those with ``repr=False``."""
    names = [field.name for field in fields(value) if field.repr]
    return {name: described(getattr(value, name), depth) for name in names}


def versions() -> dict[str, str]:
    """Return the versions of Python, of this package, of torch and of numpy."""
    return {
        "python": platform.python_version(),
        "compss_train": __version__,
        "torch": importlib.metadata.version("torch"),
        "numpy": importlib.metadata.version("numpy"),
    }


def details(name: str, value: object, *, tensors: bool = True) -> Details:
    """Return classes, plain attributes and arguments of an object, and of what it is made of.

    Functions have a hash of their code, and the values in their closures and defaults; arrays, and
    the tensors in a module's state_dict, a hash unless ``tensors`` is false, as for a network that
    is trained. Other tensors of a module are left out: they may be caches.
    """
    return _Collector(tensors=tensors).of(name, value, 0)


class _Collector:
    """Collects details; an object that occurs again has none."""

    def __init__(self, *, tensors: bool) -> None:
        self._tensors = tensors
        self._seen: dict[int, object] = {}

    def of(self, name: str, value: Any, depth: int) -> Details:
        """Return the details of a value, at a depth of nesting."""
        plain = _as_plain(value)
        if plain is not None:
            return {name: plain[0]}
        if isinstance(value, torch.Tensor) and value.is_meta:
            return {}  # of the network that a function holds, as tasks get it
        if isinstance(value, torch.Tensor | np.ndarray):
            return {name: _array_hash(value)} if self._tensors else {}
        if isinstance(value, Enum | torch.dtype | torch.device):
            return {name: str(value)}
        if type(value).__module__ == _GRAPHS:
            return {name: _hash(_without_addresses(str(value)).encode())}
        if isinstance(value, type | BuiltinFunctionType):
            return {name: _full_name(value)}
        if id(value) in self._seen or depth > DEEPEST:
            return {}
        self._seen[id(value)] = value  # kept, so that no other object gets its id
        if isinstance(value, FunctionType):
            return self._of_function(name, value, depth)
        if isinstance(value, MethodType):
            function = self.of(name, value.__func__, depth)
            return function | self._limited(name, {"self": value.__self__}, depth)
        if isinstance(value, nn.Module):
            return self._of_module(name, value, depth)
        items = _items(value)
        if items is not None:
            is_partial = isinstance(value, functools.partial)
            function = self.of(name, value.func, depth) if is_partial else {}
            return function | self._limited(name, items, depth)
        attributes = getattr(value, "__dict__", {})
        if is_dataclass(value):
            secrets = [field.name for field in fields(value) if not field.repr]
            attributes = {key: attributes[key] for key in attributes if key not in secrets}
        return {name: _full_name(type(value)), **self._limited(name, attributes, depth)}

    def _limited(self, name: str, values: Mapping[Any, Any], depth: int) -> Details:
        collected: Details = {}
        for key, value in values.items():
            collected |= self.of(f"{name}.{key}", value, depth + 1)
        if len(collected) > MOST_ITEMS:
            return {f"{name}.all": f"{len(collected)} values, {_hash(repr(collected).encode())}"}
        return collected

    def _of_module(self, name: str, module: nn.Module, depth: int) -> Details:
        plain = {
            key: value
            for key, value in vars(module).items()
            if key not in _OF_EVERY_MODULE and not _has_tensors(value)
        }
        collected = {name: _full_name(type(module)), **self._limited(name, plain, depth)}
        if self._tensors:
            collected |= self._limited(name, own_tensors(module), depth)
        for key, child in module.named_children():
            collected |= self.of(f"{name}.{key}", child, depth)
        return collected

    def _of_function(self, name: str, function: FunctionType, depth: int) -> Details:
        full_name = _full_name(function)
        code = function.__code__
        is_of_library = code.co_filename.startswith("<frozen") or is_installed(code.co_filename)
        if is_of_library or function.__module__.startswith("compss_train."):
            return {name: full_name}
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        closure = {key: cell.cell_contents for key, cell in cells if cell != _EMPTY}
        defaults: dict[Any, Any] = {
            **dict(enumerate(function.__defaults__ or ())),
            **(function.__kwdefaults__ or {}),
        }
        return {
            name: full_name,
            f"{name}.{CODE}": _code_hash(code),
            **self._limited(name, {**closure, **defaults}, depth),
        }


def _has_tensors(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in leaves(value))


def _dtype_name(array: torch.Tensor | np.ndarray[Any, Any]) -> str:
    return str(array.dtype).removeprefix("torch.")


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def _array_hash(array: torch.Tensor | np.ndarray[Any, Any]) -> str:
    if isinstance(array, np.ndarray):
        data = b"" if array.dtype.hasobject else array.tobytes()
    else:
        is_plain = array.layout == torch.strided and not (array.is_meta or array.is_quantized)
        data = flat_bytes(array.detach().cpu().contiguous()).numpy().tobytes() if is_plain else b""
    return f"{_dtype_name(array)} {tuple(array.shape)} {_hash(data)}"


def _code_hash(code: CodeType) -> str:
    """Return a hash of what code does, without names of files and numbers of lines."""
    constants: list[object] = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            constant = _code_hash(constant)
        elif isinstance(constant, Set):
            constant = sorted(map(repr, constant))
        constants.append(constant)
    return _hash(repr((code.co_code, code.co_names, constants)).encode())
