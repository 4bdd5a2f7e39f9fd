"""Values as JSON texts and named tensors, and a list that grows, of which each item is encoded once."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from compss_train.training.checkpoints.arrays import TYPES


@dataclass(frozen=True)
class Encoded:
    """A value as JSON can hold it, and the tensors that it names."""

    text: str
    tensors: dict[str, torch.Tensor]

    @classmethod
    def of(cls, value: Any, name: str) -> Encoded:
        """Encode a value; ``name`` is what the names of its tensors begin with."""
        tensors: dict[str, torch.Tensor] = {}
        return cls(json.dumps(cut(value, name, tensors)), tensors)


@dataclass
class GrowingList:
    """Encodes a list again and again; what is in it, but for the last item, is taken not to change.

    So a history costs a checkpoint the joining of texts, and thousands of rounds do not slow it down.
    """

    name: str
    _known: list[tuple[object, Encoded]] = field(default_factory=list)

    def encoded(self, items: Sequence[object]) -> Encoded:
        """Return the list, encoded."""
        settled = items[:-1]
        del self._known[self._same(settled) :]
        for place in range(len(self._known), len(settled)):
            self._known.append((settled[place], self._encoded(settled[place], place)))
        parts = [part for _, part in self._known]
        parts += [self._encoded(item, len(parts)) for item in items[-1:]]
        tensors = {name: tensor for part in parts for name, tensor in part.tensors.items()}
        return Encoded(f"[{', '.join(part.text for part in parts)}]", tensors)

    def _same(self, items: Sequence[object]) -> int:
        """Return how many of the first ones are known."""
        pairs = enumerate(zip(self._known, items, strict=False))
        return next((n for n, (known, item) in pairs if known[0] is not item), min(len(self._known), len(items)))

    def _encoded(self, item: object, place: int) -> Encoded:
        return Encoded.of(item, f"{self.name}/{place}")


KIND = "$"
"""The key of a JSON object that stands for what JSON has no form for."""

_RESERVED = "__metadata__"
"""The one name that a tensor cannot have in a safetensors file."""


def cut(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Return a value as JSON can hold it; its arrays and tensors go to ``tensors``, named by their path.

    Raises ``TypeError`` for anything but numbers, texts, ``None``, lists, tuples, dicts, arrays and tensors.
    """
    if value is None or (isinstance(value, str | bool | int) and not isinstance(value, np.generic)):
        return value
    if isinstance(value, float) and not isinstance(value, np.generic):
        return value if math.isfinite(value) else {KIND: "float", "value": repr(value)}
    if isinstance(value, torch.Tensor):
        return {KIND: "tensor", "name": _put(_checked(value, name), name, tensors)}
    if isinstance(value, np.ndarray | np.generic):
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return {KIND: kind, "name": _put(_as_tensor(value, name), name, tensors)}
    if isinstance(value, list | tuple):
        items = [cut(item, _path(name, place), tensors) for place, item in enumerate(value)]
        return items if isinstance(value, list) else {KIND: "tuple", "items": items}
    if isinstance(value, dict):
        return _cut_dict(value, name, tensors)
    raise TypeError(
        f"{name} is a {type(value).__module__}.{type(value).__qualname__}; a checkpoint holds numbers, texts, "
        "None, lists, tuples, dicts, arrays and tensors"
    )


def _cut_dict(value: dict[Any, Any], name: str, tensors: dict[str, torch.Tensor]) -> Any:
    if all(isinstance(key, str) for key in value) and KIND not in value:
        return {key: cut(item, _path(name, key), tensors) for key, item in value.items()}
    items = [[cut(key, name, tensors), cut(item, _path(name, key), tensors)] for key, item in value.items()]
    return {KIND: "dict", "items": items}


def _path(name: str, part: object) -> str:
    return f"{name}/{part}" if name else str(part)


def _put(tensor: torch.Tensor, path: str, tensors: dict[str, torch.Tensor]) -> str:
    """Add a tensor under its path, or where another has that name already under one like it; return the name."""
    name = path.encode(errors="backslashreplace").decode()
    while name in tensors or name == _RESERVED:
        name += "'"
    tensors[name] = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return name


def _checked(tensor: torch.Tensor, name: str) -> torch.Tensor:
    if tensor.layout != torch.strided or tensor.is_meta or tensor.dtype not in TYPES:
        what = f"{tensor.dtype}, {tensor.layout} on {tensor.device}"
        raise TypeError(f"{name} is a tensor of {what}, which a checkpoint cannot hold")
    return tensor


def _as_tensor(value: np.ndarray[Any, Any] | np.generic, name: str) -> torch.Tensor:
    try:
        tensor = torch.from_numpy(np.array(value, value.dtype.newbyteorder("="), order="C"))
    except TypeError as error:
        raise TypeError(f"{name} is an array of {value.dtype}, which a checkpoint cannot hold") from error
    return _checked(tensor, name)


def join(document: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Return the value that ``cut`` made this of. Raises ``LookupError`` where a tensor is missing."""
    if isinstance(document, list):
        return [join(item, tensors) for item in document]
    if not isinstance(document, dict):
        return document
    if KIND not in document:
        return {key: join(item, tensors) for key, item in document.items()}
    return _joined(document[KIND], document, tensors)


def _joined(kind: str, document: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Any:
    if kind == "float":
        return float(document["value"])
    if kind == "tuple":
        return tuple(join(document["items"], tensors))
    if kind == "dict":
        return {join(key, tensors): join(item, tensors) for key, item in document["items"]}
    tensor = tensors[document["name"]]
    if kind == "tensor":
        return tensor
    return tensor.numpy() if kind == "array" else tensor.numpy()[()]
