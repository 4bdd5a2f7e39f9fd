"""One checkpoint on disk: written to a temporary name and renamed, verified when it is read."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from compss_train.exceptions import BadCheckpointError
from compss_train.training.checkpoints.arrays import save
from compss_train.training.checkpoints.json_encoding import Encoded, cut, join

ARRAYS = "arrays.safetensors"
STATE = "state.json"
FORMAT = "compss_train checkpoint"
VERSION = 2


def write(path: str | os.PathLike[str], content: dict[str, Any]) -> None:
    """Write a tree of plain values, arrays and tensors as the folder ``path``, replacing what is there.

    Values of ``content`` may be ``Encoded`` already, by the names that they have there. Whenever the machine stops,
    the folder is complete or not there. Raises ``OSError`` where it cannot be written.
    """
    path = Path(path)
    new = _free(temporary(path, "new"))
    try:
        new.mkdir(parents=True)
        _write_files(new, content)
        replace(new, path)
    except BaseException as error:
        shutil.rmtree(new, ignore_errors=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def _write_files(folder: Path, content: dict[str, Any]) -> None:
    state, tensors = _joined(content)
    sha256 = {ARRAYS: save(tensors, folder / ARRAYS), "state": hashlib.sha256(state.encode()).hexdigest()}
    head = json.dumps({"format": FORMAT, "version": VERSION, "sha256": sha256})
    (folder / STATE).write_text(f'{head[:-1]}, "state": {state}}}\n', encoding="utf-8")
    for place in (folder / STATE, folder):
        _sync(place)


def _joined(content: dict[str, Any]) -> tuple[str, dict[str, torch.Tensor]]:
    """Return the JSON of it all, and the tensors."""
    encoded = {name: value for name, value in content.items() if isinstance(value, Encoded)}
    tensors = {name: tensor for value in encoded.values() for name, tensor in value.tensors.items()}
    others = {name: value for name, value in content.items() if name not in encoded}
    document = json.dumps(cut(others, "", tensors))
    items = [document[1:-1], *(f"{json.dumps(name)}: {value.text}" for name, value in encoded.items())]
    return f"{{{', '.join(filter(None, items))}}}", tensors


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what ``write`` wrote.

    Raises ``BadCheckpointError`` for a folder that is incomplete, damaged, of another format or a newer version.
    """
    path = Path(path)
    document = _document(path)
    try:
        if _digest(path / ARRAYS) != document["sha256"][ARRAYS]:
            raise BadCheckpointError(path, f"{ARRAYS} is damaged: its checksum is not the one in {STATE}")
        content: dict[str, Any] = join(document["state"], load_file(path / ARRAYS))
    except FileNotFoundError as error:
        raise BadCheckpointError(path, f"there is no {ARRAYS} in it") from error
    except (SafetensorError, LookupError, OSError) as error:
        raise BadCheckpointError(path, f"{ARRAYS} cannot be read: {error}") from error
    return content


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads((path / STATE).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        what = f"there is no {STATE} in it" if path.exists() else "there is no such folder"
        raise BadCheckpointError(path, what) from error
    except OSError as error:
        raise BadCheckpointError(path, f"{STATE} cannot be read: {error}") from error
    except ValueError as error:
        raise BadCheckpointError(path, f"{STATE} is damaged: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BadCheckpointError(path, f"{STATE} is not that of a checkpoint of compss_train")
    if document.get("version") != VERSION:
        version = document.get("version")
        raise BadCheckpointError(
            path, f"it is in version {version!r} of the format, and this compss_train reads version {VERSION}"
        )
    state = json.dumps(document.get("state")).encode()
    sha256 = document.get("sha256")
    if not isinstance(sha256, dict) or sha256.get("state") != hashlib.sha256(state).hexdigest():
        raise BadCheckpointError(path, f"{STATE} is damaged: its checksum does not agree")
    return document


def replace(new: Path, path: Path) -> None:
    """Give ``new`` the name ``path``; what has that name is removed."""
    if path.exists():
        remove(path)
    new.rename(path)
    _sync(path.parent)


def remove(path: Path) -> None:
    """Remove a checkpoint; nobody sees a part of it."""
    old = _free(temporary(path, "old"))
    path.rename(old)
    shutil.rmtree(old, ignore_errors=True)


def temporary(path: Path, what: str) -> Path:
    """Return a name beside ``path`` that is this process's own."""
    return path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.{what}")


def _free(path: Path) -> Path:
    """Remove what a killed process of the same number has left: in containers numbers come again."""
    shutil.rmtree(path, ignore_errors=True)
    return path


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Have the system write a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
