"""Saved state: plain values, arrays and tensors in two files with checksums.

To change the format, raise ``VERSION`` and add to ``UPGRADES`` what makes a state of the version
before a new one. ``tests/training/checkpoints`` has a checkpoint of every version that can be read.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from compss_train._utils import __version__
from compss_train._utils.files import DISK, Disk, check_file, read_bytes
from compss_train.exceptions import BadCheckpointError
from compss_train.model.value_encoding import from_json, to_json

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
"""Functions that make a state of an earlier version one of the next: these versions can be read."""

_OS_ERROR = re.compile(r"\(os error ([0-9]+)\)")


def write_state(folder: Path, content: dict[str, Any], disk: Disk = DISK) -> None:
    """Write plain values, arrays and tensors, with checksums, to a folder without such files."""
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(to_json(content, "", tensors))

    def save(path: Path) -> None:
        try:
            save_file(without_sharing(tensors), path)
        except SafetensorError as error:
            match = _OS_ERROR.search(str(error))
            if match is None:
                raise
            number = int(match[1])
            raise OSError(number, os.strerror(number)) from error

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
    storages: set[int] = set()
    separate = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        separate[name] = tensor.clone() if storage in storages else tensor
        storages.add(storage)
    return separate


def read_state(path: Path) -> dict[str, Any]:
    """Return the content that ``write_state`` wrote to a folder, also in an earlier version.

    Raises ``BadCheckpointError`` for a folder that is incomplete, damaged, of another format or
    another version.
    """
    document = _read_document(path)
    try:
        if sha256_of_file(path / ARRAYS) != document["sha256"][ARRAYS]:
            reason = f"{ARRAYS} is damaged: its checksum is not the one in {STATE}"
            raise BadCheckpointError(path, reason)
        content: dict[str, Any] = from_json(document["state"], load_file(path / ARRAYS))
        for version in range(document["version"], VERSION):
            content = UPGRADES[version](content)
    except FileNotFoundError as error:
        raise BadCheckpointError(path, f"it has no {ARRAYS}") from error
    except (SafetensorError, LookupError, OSError, RecursionError) as error:
        raise BadCheckpointError(path, f"{ARRAYS} cannot be read: {error}") from error
    return content


def _read_document(path: Path) -> dict[str, Any]:
    """Return the JSON of a state; raise ``BadCheckpointError`` as ``read_state`` does."""
    try:
        document = json.loads(read_bytes(path / STATE).decode())
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
    readable = (*UPGRADES, VERSION)
    if version not in readable:
        writer = "an earlier compss_train"
        if "release" in document:
            writer = f"compss_train {document['release']}"
        advice = "resume it with that release"
        if isinstance(version, int) and version > VERSION:
            advice = "install that release, or a later one"
        reason = (
            f"{writer} wrote it in version {version!r} of the format, and this compss_train "
            f"{__version__} reads versions {min(readable)} to {VERSION}: {advice}"
        )
        raise BadCheckpointError(path, reason, damaged=False)
    return document


def sha256_of_file(path: Path) -> str:
    """Return the SHA-256 of a file; raise ``OSError`` for a FIFO and the like."""
    check_file(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sha256_of_text(version: object, text: str) -> str:
    """Return the checksum of a state and its version: a damaged one must not look like another."""
    return hashlib.sha256(f"{version!r} {text}".encode()).hexdigest()


def sha256_of(arrays: Mapping[str, np.ndarray[Any, Any]]) -> str:
    """Return the SHA-256 of names, dtypes, shapes and bytes of arrays, whatever their order."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
