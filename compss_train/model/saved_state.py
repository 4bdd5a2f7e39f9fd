"""Plain values, arrays and tensors as JSON and named tensors, and back."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

DTYPES = frozenset(
    {
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
        *(torch.complex64, torch.int64, torch.int32, torch.int16, torch.int8),
        *(torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.bool),
    }
)
"""The dtypes of tensors that a checkpoint can hold, which are those of safetensors files."""

TYPE_KEY = "$"
"""The key of a JSON object that stands for a value of a type that JSON lacks."""

_RESERVED = "__metadata__"
"""The one name that a tensor cannot have in a safetensors file."""


@dataclass(frozen=True)
class EncodedValue:
    """A value as JSON text, and the tensors that it refers to by name."""

    text: str
    tensors: dict[str, torch.Tensor]

    @classmethod
    def encode(cls, value: Any, name: str) -> EncodedValue:
        """Encode a value; the names of its tensors start with ``name``."""
        tensors: dict[str, torch.Tensor] = {}
        return cls(json.dumps(to_json(value, name, tensors)), tensors)


@dataclass
class IncrementalListEncoder:
    """Encodes a growing list repeatedly, each item once: other items than the last may be replaced, not changed.

    So the cost of a history in a checkpoint is the joining of texts, and thousands of rounds do not slow it down.
    """

    name: str
    _encoded: list[tuple[object, EncodedValue]] = field(default_factory=list)

    def encode(self, items: Sequence[object]) -> EncodedValue:
        """Return the encoded list."""
        settled = items[:-1]
        del self._encoded[len(settled) :]
        for index, item in enumerate(settled):
            if index >= len(self._encoded) or self._encoded[index][0] is not item:
                self._encoded[index : index + 1] = [(item, self._encode_item(item, index))]
        parts = [part for _, part in self._encoded]
        parts += [self._encode_item(item, len(parts)) for item in items[-1:]]
        tensors = {name: tensor for part in parts for name, tensor in part.tensors.items()}
        return EncodedValue(f"[{', '.join(part.text for part in parts)}]", tensors)

    def _encode_item(self, item: object, index: int) -> EncodedValue:
        return EncodedValue.encode(item, f"{self.name}/{index}")


def to_json(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Return a value as JSON can hold it; its arrays and tensors are added to ``tensors``, named by their path.

    Raises ``TypeError`` for anything but numbers, strings, ``None``, lists, tuples, dicts, arrays and tensors.
    """
    if value is None or (isinstance(value, str | bool | int) and not isinstance(value, np.generic)):
        return value
    if isinstance(value, float) and not isinstance(value, np.generic):
        return value if math.isfinite(value) else {TYPE_KEY: "float", "value": repr(value)}
    if isinstance(value, torch.Tensor):
        return {TYPE_KEY: "tensor", "name": _add_tensor(_checked(value, name), name, tensors)}
    if isinstance(value, np.ndarray | np.generic):
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return {TYPE_KEY: kind, "name": _add_tensor(_as_tensor(value, name), name, tensors)}
    if isinstance(value, list | tuple):
        items = [to_json(item, _join_path(name, index), tensors) for index, item in enumerate(value)]
        return items if isinstance(value, list) else {TYPE_KEY: "tuple", "items": items}
    if isinstance(value, dict):
        return _dict_to_json(value, name, tensors)
    raise TypeError(
        f"{name} is a {type(value).__module__}.{type(value).__qualname__}; a checkpoint holds numbers, strings, "
        "None, lists, tuples, dicts, arrays and tensors"
    )


def _dict_to_json(value: dict[Any, Any], name: str, tensors: dict[str, torch.Tensor]) -> Any:
    if all(isinstance(key, str) for key in value) and TYPE_KEY not in value:
        return {key: to_json(item, _join_path(name, key), tensors) for key, item in value.items()}
    items = [
        [to_json(key, name, tensors), to_json(item, _join_path(name, key), tensors)] for key, item in value.items()
    ]
    return {TYPE_KEY: "dict", "items": items}


def _join_path(name: str, part: object) -> str:
    return f"{name}/{part}" if name else str(part)


def _add_tensor(tensor: torch.Tensor, path: str, tensors: dict[str, torch.Tensor]) -> str:
    """Add a tensor under its path, or a similar name if that is taken; return the name."""
    name = path.encode(errors="backslashreplace").decode()
    while name in tensors or name == _RESERVED:
        name += "'"
    tensors[name] = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return name


def _checked(tensor: torch.Tensor, name: str) -> torch.Tensor:
    if tensor.layout != torch.strided or tensor.is_meta or tensor.dtype not in DTYPES:
        description = f"{tensor.dtype}, {tensor.layout} on {tensor.device}"
        raise TypeError(f"{name} is a tensor of {description}, which a checkpoint cannot hold")
    return tensor


def _as_tensor(value: np.ndarray[Any, Any] | np.generic, name: str) -> torch.Tensor:
    try:
        tensor = torch.from_numpy(np.array(value, value.dtype.newbyteorder("="), order="C"))
    except TypeError as error:
        raise TypeError(f"{name} is an array of {value.dtype}, which a checkpoint cannot hold") from error
    return _checked(tensor, name)


def from_json(document: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Return the value that ``to_json`` converted. Raises ``LookupError`` if a tensor is missing."""
    if isinstance(document, list):
        return [from_json(item, tensors) for item in document]
    if not isinstance(document, dict):
        return document
    if TYPE_KEY not in document:
        return {key: from_json(item, tensors) for key, item in document.items()}
    return _typed_from_json(document[TYPE_KEY], document, tensors)


def _typed_from_json(kind: str, document: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Any:
    if kind == "float":
        return float(document["value"])
    if kind == "tuple":
        return tuple(from_json(document["items"], tensors))
    if kind == "dict":
        return {from_json(key, tensors): from_json(item, tensors) for key, item in document["items"]}
    tensor = tensors[document["name"]]
    if kind == "tensor":
        return tensor
    return tensor.numpy() if kind == "array" else tensor.numpy()[()]
