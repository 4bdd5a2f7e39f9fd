"""Saved state: plain values, arrays and tensors, as JSON and named tensors, in two files with
checksums.

To change the format, raise ``VERSION`` and add to ``UPGRADES`` what makes a state of the version
before a new one. ``tests/training/checkpoints`` has a checkpoint of every version that can be read.
"""

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save_file

from compss_train._utils import __version__
from compss_train._utils.files import DISK, Disk
from compss_train.exceptions import BadCheckpointError

ARRAYS = "arrays.safetensors"
STATE = "state.json"
FORMAT = "compss_train checkpoint"
VERSION = 6


def _with_numbered_moments(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state of version 5 as one of version 6.

    Version 5 names what merges keep of optimizers by the numbers of parameters, version 6 by their
    names. Whoever loads the state knows which numbers are which names.
    """
    merge = state.get("merge", {})
    moments = merge.get("moments")
    if moments is None:
        return state
    numbered = {}
    for name, array in moments.items():
        number, _, key = name.removeprefix("optimizer state/").partition(".")
        numbered[int(number), key] = array
    return {**state, "merge": {**merge, "moments": numbered}}


UPGRADES: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = {
    # Version 4 holds the whole history, version 5 its end.
    4: lambda state: {**state, "history": {"files": [], "emptied": 0, "rest": state["history"]}},
    5: _with_numbered_moments,
}
"""The earlier versions that can be read: each function makes a state of its version one of the next
version.
"""

_OS_ERROR = re.compile(r"\(os error ([0-9]+)\)")


DTYPES: Mapping[torch.dtype, str] = dict(
    zip(
        (
            *(
                torch.float64,
                torch.float32,
                torch.float16,
                torch.bfloat16,
                torch.float8_e4m3fn,
                torch.float8_e5m2,
            ),
            *(torch.complex64, torch.int64, torch.int32, torch.int16, torch.int8),
            *(torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.bool),
        ),
        (
            *("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"),
            *("C64", "I64", "I32", "I16", "I8"),
            *("U64", "U32", "U16", "U8", "BOOL"),
        ),
        strict=True,
    )
)
"""The dtypes of tensors that a checkpoint can hold, and their names in safetensors files."""

TYPE_KEY = "$"
"""The key of a JSON object that stands for a value of a type that JSON does not have."""

_RESERVED = "__metadata__"
"""The one name that a tensor cannot have in a safetensors file."""


def to_json(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Return a value as JSON can hold it; its arrays and tensors are added to ``tensors``, named by
    their path.

    Raises ``TypeError`` for anything but numbers, strings, ``None``, lists, tuples, dicts, arrays
    and tensors.
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
        return {TYPE_KEY: "tensor", "name": _add_tensor(value, name, tensors)}
    if isinstance(value, list | tuple):
        items = [inside(item, index) for index, item in enumerate(value)]
        return items if isinstance(value, list) else {TYPE_KEY: "tuple", "items": items}
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and TYPE_KEY not in value:
            return {key: inside(item, key) for key, item in value.items()}
        pairs = [[to_json(key, name, tensors), inside(item, key)] for key, item in value.items()]
        return {TYPE_KEY: "dict", "items": pairs}
    raise TypeError(
        f"{name} is a {type(value).__module__}.{type(value).__qualname__}; a checkpoint holds "
        "numbers, strings, None, lists, tuples, dicts, arrays and tensors"
    )


def _add_tensor(tensor: torch.Tensor, path: str, tensors: dict[str, torch.Tensor]) -> str:
    """Add a tensor under its path, or under a similar name if that is taken; return the name."""
    if tensor.layout != torch.strided or tensor.is_meta or tensor.dtype not in DTYPES:
        description = f"{tensor.dtype}, {tensor.layout} on {tensor.device}"
        raise TypeError(f"{path} is a tensor of {description}, which a checkpoint cannot hold")
    name = path.encode(errors="backslashreplace").decode()
    while name in tensors or name == _RESERVED:
        name += "'"
    tensors[name] = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return name


def from_json(document: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Return the value that ``to_json`` converted. Raises ``LookupError`` if a tensor is
    missing.
    """
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
    if kind == "dict":
        return {
            from_json(key, tensors): from_json(item, tensors) for key, item in document["items"]
        }
    tensor = tensors[document["name"]]
    if kind == "tensor":
        return tensor
    return tensor.numpy() if kind == "array" else tensor.numpy()[()]


def encode_value(value: Any) -> torch.Tensor:
    """Return a value of numbers, strings, lists, tuples, dicts, arrays and tensors as a tensor of
    bytes.

    The bytes are a safetensors file of its arrays, and of one more with the JSON that refers to
    them by name. Raises ``TypeError`` for other types.
    """
    return torch.cat(encoded_pieces(value))


def encoded_pieces(value: Any) -> list[torch.Tensor]:
    """Return what ``encode_value`` does in pieces, of which those of large tensors share the
    tensors' memory.
    """
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(to_json(value, "value", tensors))
    tensors[STATE] = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    # Readers map a file into memory, so that numbers must be aligned: large ones come first.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].itemsize)
    described = dict[str, Any]()
    start = 0
    for name, tensor in ordered:
        offsets = [start, start := start + tensor.nbytes]
        described[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": [*tensor.shape],
            "data_offsets": offsets,
        }
    header = json.dumps(described).encode()
    header += b" " * (-len(header) % 8)
    first = torch.frombuffer(
        bytearray(len(header).to_bytes(8, "little") + header), dtype=torch.uint8
    )
    # A single number is contiguous with any strides.
    return [
        first,
        *(tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8) for _, tensor in ordered),
    ]


def decode_value(data: torch.Tensor) -> Any:
    """Return the value that ``encode_value`` encoded; nothing in it can execute code.

    Raises ``ValueError`` for other bytes, also for lists in lists that are too deep for Python.
    """
    try:
        tensors = load(np.asarray(data).tobytes())
        return from_json(json.loads(np.asarray(tensors.pop(STATE)).tobytes()), tensors)
    except (SafetensorError, ValueError, TypeError, LookupError, RecursionError) as error:
        raise ValueError(
            f"{data.numel()} bytes are not a value that encode_value made "
            f"({type(error).__name__}: {error}); the sender is damaged or has another version of "
            "compss_train"
        ) from error


def write_state(folder: Path, content: dict[str, Any], disk: Disk = DISK) -> None:
    """Write a tree of plain values, arrays and tensors to a folder that has no such files, with
    checksums.
    """
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(to_json(content, "", tensors))

    def save(path: Path) -> None:
        try:
            save_file(without_sharing(tensors), path)
        except SafetensorError as error:
            if (match := _OS_ERROR.search(str(error))) is None:
                raise
            raise OSError(int(match[1]), os.strerror(int(match[1]))) from error

    arrays = folder / ARRAYS
    state = folder / STATE
    disk.write(arrays, save)
    sha256 = {ARRAYS: sha256_of_file(arrays), "state": _sha256_of_text(VERSION, text)}
    head = json.dumps(
        {"format": FORMAT, "version": VERSION, "release": __version__, "sha256": sha256}
    )
    document = f'{head[:-1]}, "state": {text}}}\n'
    disk.write(state, lambda path: path.write_text(document, encoding="utf-8"))
    # The library's files are readable by their owner only, regardless of the umask.
    shutil.copymode(state, arrays)
    for path in (arrays, state, folder):
        disk.sync(path)


def without_sharing(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors, copied where they share memory, which the library refuses to write."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        result[name] = tensor.clone() if storage in seen else tensor
        seen.add(storage)
    return result


def sha256_of_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sha256_of_text(version: object, text: str) -> str:
    """Return the checksum of a state and of its version: a damaged version must not look like
    another one.
    """
    return hashlib.sha256(f"{version!r} {text}".encode()).hexdigest()


def sha256_of(arrays: Mapping[str, np.ndarray[Any, Any]]) -> str:
    """Return the SHA-256 of named arrays, whatever their order: of names, dtypes, shapes and
    bytes.
    """
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def read_state(path: Path) -> dict[str, Any]:
    """Return the content that ``write_state`` wrote to a folder, also that of earlier versions in
    ``UPGRADES``.

    Raises ``BadCheckpointError`` for a folder that is incomplete, damaged, of another format or
    another version.
    """
    document = _read_document(path)
    try:
        if sha256_of_file(path / ARRAYS) != document["sha256"][ARRAYS]:
            raise BadCheckpointError(
                path, (f"{ARRAYS} is damaged: its checksum is not the one in {STATE}")
            )
        content: dict[str, Any] = from_json(document["state"], load_file(path / ARRAYS))
        for version in range(document["version"], VERSION):
            content = UPGRADES[version](content)
    except FileNotFoundError as error:
        raise BadCheckpointError(path, f"it has no {ARRAYS}") from error
    except (SafetensorError, LookupError, OSError, RecursionError) as error:
        raise BadCheckpointError(path, f"{ARRAYS} cannot be read: {error}") from error
    return content


def _read_document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads((path / STATE).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        reason = f"it has no {STATE}" if path.exists() else "the folder does not exist"
        raise BadCheckpointError(path, reason) from error
    except OSError as error:
        raise BadCheckpointError(path, f"{STATE} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise BadCheckpointError(path, f"{STATE} is damaged: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BadCheckpointError(path, f"{STATE} is not that of a checkpoint of compss_train")
    version = document.get("version")
    sha256 = document.get("sha256")
    text = json.dumps(document.get("state"))
    if not isinstance(sha256, dict) or sha256.get("state") != _sha256_of_text(version, text):
        raise BadCheckpointError(path, f"{STATE} is damaged: its checksum does not match")
    if version not in (readable := (*UPGRADES, VERSION)):
        writer = (
            f"compss_train {document['release']}"
            if "release" in document
            else ("an earlier compss_train")
        )
        newer = isinstance(version, int) and version > VERSION
        reason = (
            f"{writer} wrote it in version {version!r} of the format, and this compss_train "
            f"{__version__} reads versions {min(readable)} to {VERSION}: "
            + ("install that release, or a later one" if newer else "resume it with that release")
        )
        raise BadCheckpointError(path, reason, damaged=False)
    return document
