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
from compss_train._utils.files import DISK, Disk
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
"""The earlier versions that can be read: each function makes a state of its version one of the next
version.
"""


_OS_ERROR = re.compile(r"\(os error ([0-9]+)\)")


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
