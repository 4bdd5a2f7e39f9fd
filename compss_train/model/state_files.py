"""Saved state on disk: a folder of two files, whose checksums are verified when it is read."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from compss_train._utils.files import DISK, Disk
from compss_train.exceptions import BadCheckpointError
from compss_train.model.saved_state import EncodedValue, from_json, to_json

ARRAYS = "arrays.safetensors"
STATE = "state.json"
FORMAT = "compss_train checkpoint"
VERSION = 3

_OS_ERROR = re.compile(r"\(os error ([0-9]+)\)")


def write_state(folder: Path, content: dict[str, Any], disk: Disk = DISK) -> None:
    """Write a tree of plain values, arrays and tensors to an empty folder, with checksums.

    Values of ``content`` may be encoded already (``EncodedValue``), with their key as the prefix of their tensors.
    """
    arrays, state = folder / ARRAYS, folder / STATE
    text, tensors = _encode(content)
    disk.write(arrays, lambda path: _save_tensors(tensors, path))
    sha256 = {ARRAYS: _sha256(arrays), "state": hashlib.sha256(text.encode()).hexdigest()}
    head = json.dumps({"format": FORMAT, "version": VERSION, "sha256": sha256})
    document = f'{head[:-1]}, "state": {text}}}\n'
    disk.write(state, lambda path: path.write_text(document, encoding="utf-8"))
    shutil.copymode(state, arrays)  # the library's files are readable by their owner only, regardless of the umask
    for path in (arrays, state, folder):
        disk.sync(path)


def _encode(content: dict[str, Any]) -> tuple[str, dict[str, torch.Tensor]]:
    """Return the content as JSON, and its tensors."""
    encoded = {name: value for name, value in content.items() if isinstance(value, EncodedValue)}
    tensors = {name: tensor for value in encoded.values() for name, tensor in value.tensors.items()}
    others = {name: value for name, value in content.items() if name not in encoded}
    try:
        document = json.dumps(to_json(others, "", tensors))
    except RecursionError as error:
        raise ValueError("a state is nested too deeply for a checkpoint, or contains itself") from error
    items = [document[1:-1], *(f"{json.dumps(name)}: {value.text}" for name, value in encoded.items())]
    return f"{{{', '.join(filter(None, items))}}}", tensors


def _save_tensors(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    try:
        save_file(without_sharing(tensors), path)
    except SafetensorError as error:
        if (match := _OS_ERROR.search(str(error))) is None:
            raise
        raise OSError(int(match[1]), os.strerror(int(match[1]))) from error


def without_sharing(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors, copied where they share memory, which the library refuses to write."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        result[name] = tensor.clone() if storage in seen else tensor
        seen.add(storage)
    return result


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_state(path: Path) -> dict[str, Any]:
    """Return the content that ``write_state`` wrote to a folder.

    Raises ``BadCheckpointError`` for a folder that is incomplete, damaged, of another format or another version.
    """
    document = _read_document(path)
    try:
        if _sha256(path / ARRAYS) != document["sha256"][ARRAYS]:
            raise BadCheckpointError(path, f"{ARRAYS} is damaged: its checksum is not the one in {STATE}")
        content: dict[str, Any] = from_json(document["state"], load_file(path / ARRAYS))
    except FileNotFoundError as error:
        raise BadCheckpointError(path, f"it has no {ARRAYS}") from error
    except (SafetensorError, LookupError, OSError, RecursionError) as error:
        raise BadCheckpointError(path, f"{ARRAYS} cannot be read: {error}") from error
    return content


def _read_document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads((path / STATE).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadCheckpointError(
            path, f"it has no {STATE}" if path.exists() else "the folder does not exist"
        ) from error
    except OSError as error:
        raise BadCheckpointError(path, f"{STATE} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise BadCheckpointError(path, f"{STATE} is damaged: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BadCheckpointError(path, f"{STATE} is not that of a checkpoint of compss_train")
    if (version := document.get("version")) != VERSION:
        reason = f"its format has version {version!r}, and this compss_train reads version {VERSION}"
        raise BadCheckpointError(path, reason, damaged=False)
    state = json.dumps(document.get("state")).encode()
    sha256 = document.get("sha256")
    if not isinstance(sha256, dict) or sha256.get("state") != hashlib.sha256(state).hexdigest():
        raise BadCheckpointError(path, f"{STATE} is damaged: its checksum does not match")
    return document
