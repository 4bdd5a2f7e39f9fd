"""Plain values, arrays and tensors, as JSON and named tensors or as bytes, which run no code."""

import json
import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load

from compss_train._utils.memory_order import memory_order

DTYPES: Mapping[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The dtypes of tensors that a checkpoint can hold, and their names in safetensors files."""

TYPE_KEY = "$"
"""The key of a JSON object that stands for a value of a type that JSON does not have."""

JSON = "state.json"
"""The name of the JSON among the tensors of an encoded value."""

_RESERVED = "__metadata__"
"""The one name that a tensor cannot have in a safetensors file."""


def to_json(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Return a value as JSON can hold it, and add its arrays and tensors to ``tensors``.

    There they are named by their path in the value, which begins with ``name``.

    Raises ``TypeError`` for anything but numbers, strings, ``None``, lists, tuples, deques, dicts,
    arrays, tensors and torch's dtypes.
    """

    def inside(item: Any, part: object) -> Any:
        return to_json(item, f"{name}/{part}" if name else str(part), tensors)

    if isinstance(value, np.ndarray | np.generic):
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        try:
            tensor = torch.from_numpy(np.array(value, value.dtype.newbyteorder("="), order="C"))
        except TypeError as error:
            raise TypeError(
                f"{name} is an array of {value.dtype}, which a checkpoint cannot hold"
            ) from error
        return {TYPE_KEY: kind, "name": _add_tensor(tensor, name, tensors)}
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {TYPE_KEY: "float", "value": repr(value)}
    if isinstance(value, torch.Tensor):
        _check_tensor(value, name)
        # Other strides would have other kernels, which round differently.
        order = memory_order(value)
        added = _add_tensor(value.permute(order), name, tensors)
        document = {TYPE_KEY: "tensor", "name": added}
        return document if order == sorted(order) else {**document, "order": order}
    if isinstance(value, torch.dtype):
        return {TYPE_KEY: "dtype", "value": str(value).removeprefix("torch.")}
    if isinstance(value, list | tuple):
        items = [inside(item, index) for index, item in enumerate(value)]
        return items if isinstance(value, list) else {TYPE_KEY: "tuple", "items": items}
    if isinstance(value, deque):
        return {TYPE_KEY: "deque", "items": inside([*value], "items"), "maxlen": value.maxlen}
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and TYPE_KEY not in value:
            return {key: inside(item, key) for key, item in value.items()}
        pairs = [[to_json(key, name, tensors), inside(item, key)] for key, item in value.items()]
        return {TYPE_KEY: "dict", "items": pairs}
    raise TypeError(
        f"{name} is a {type(value).__module__}.{type(value).__qualname__}; a checkpoint holds "
        "numbers, strings, None, lists, tuples, deques, dicts, arrays, tensors and torch's dtypes"
    )


def _add_tensor(tensor: torch.Tensor, path: str, tensors: dict[str, torch.Tensor]) -> str:
    """Add a tensor under its path, or under a similar name if that is taken; return the name."""
    _check_tensor(tensor, path)
    name = path.encode(errors="backslashreplace").decode()
    while name in tensors or name == _RESERVED:
        name += "'"
    tensors[name] = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return name


def _check_tensor(tensor: torch.Tensor, path: str) -> None:
    """Raise ``TypeError`` for a tensor that files cannot hold."""
    if tensor.layout != torch.strided or tensor.is_meta or tensor.dtype not in DTYPES:
        description = f"{tensor.dtype}, {tensor.layout} on {tensor.device}"
        raise TypeError(f"{path} is a tensor of {description}, which a checkpoint cannot hold")


def from_json(document: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Return the value that ``to_json`` converted; raise ``LookupError`` if a tensor is missing."""
    if isinstance(document, list):
        return [from_json(item, tensors) for item in document]
    if not isinstance(document, dict):
        return document
    kind = document.get(TYPE_KEY)
    if kind is None:
        return {key: from_json(item, tensors) for key, item in document.items()}
    if kind == "float":
        return float(document["value"])
    if kind == "tuple":
        return tuple(from_json(document["items"], tensors))
    if kind == "deque":
        return deque(from_json(document["items"], tensors), document["maxlen"])
    if kind == "dtype":
        return getattr(torch, document["value"])
    if kind == "dict":
        return {
            from_json(key, tensors): from_json(item, tensors) for key, item in document["items"]
        }
    tensor = tensors[document["name"]]
    if kind == "tensor":
        order = document.get("order")
        return tensor if order is None else tensor.permute(np.argsort(order).tolist())
    array = tensor.numpy()
    return array if kind == "array" else array[()]


def encode_value(value: Any) -> torch.Tensor:
    """Return a value as a tensor of bytes.

    It may have what ``to_json`` takes. The bytes are
    a safetensors file of its arrays, and of one more with the JSON that refers to them by name.
    Raises ``TypeError`` for other types.
    """
    return torch.cat(encoded_pieces(value))


def encoded_pieces(value: Any) -> list[torch.Tensor]:
    """Return what ``encode_value`` does, in pieces: a header, and the memory of each tensor."""
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(to_json(value, "value", tensors))
    tensors[JSON] = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    # Readers map a file into memory, so that numbers must be aligned: large ones come first.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].itemsize)
    entries = dict[str, Any]()
    start = 0
    for name, tensor in ordered:
        stop = start + tensor.nbytes
        entries[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": [*tensor.shape],
            "data_offsets": [start, stop],
        }
        start = stop
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    size = len(header).to_bytes(8, "little")
    # A single number is contiguous with any strides.
    data = [tensor.as_strided((tensor.numel(),), (1,)) for _, tensor in ordered]
    return [
        torch.frombuffer(bytearray(size + header), dtype=torch.uint8),
        *(flat.view(torch.uint8) for flat in data),
    ]


def decode_value(data: torch.Tensor) -> Any:
    """Return the value that ``encode_value`` encoded; nothing in it can execute code.

    Raises ``ValueError`` for other bytes, also for lists in lists that are too deep for Python.
    """
    try:
        tensors = load(np.asarray(data).tobytes())
        text = np.asarray(tensors.pop(JSON)).tobytes()
        return from_json(json.loads(text), tensors)
    except (SafetensorError, ValueError, TypeError, LookupError, RecursionError) as error:
        raise ValueError(
            f"{data.numel()} bytes are not a value that encode_value made "
            f"({type(error).__name__}: {error}); the sender is damaged or has another version of "
            "compss_train"
        ) from error
