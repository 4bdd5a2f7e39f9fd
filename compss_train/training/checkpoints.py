"""Checkpoints on disk: written under a temporary name and renamed, verified when they are read.

::

    folder/
        round-000012/
            arrays.safetensors     parameters, optimizer and random states: every array
            history-000000.jsonl   the records of the history but the last one, in files that
                                   checkpoints share
            state.json             everything else, and the checksums of all
"""

import logging
import os
import re
import shutil
import socket
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from compss_train._utils.files import DISK, Disk, is_running, make_folders
from compss_train._utils.validation import warn_user
from compss_train.exceptions import BadCheckpointError
from compss_train.model.saved_state import STATE, read_state, sha256_of_file, write_state
from compss_train.training.shared_history import SharedHistory, read_history

_LOG = logging.getLogger(__name__)

ROUND_FOLDER = re.compile(r"round-([0-9]{6}|[1-9][0-9]{6,})")
"""The name of a checkpoint."""


def checkpoint_path(folder: Path, number: int) -> Path:
    """Return the path of the checkpoint after a round."""
    return folder / f"round-{number:06d}"


def list_checkpoints(folder: str | os.PathLike[str]) -> dict[int, Path]:
    """Return the checkpoints of a folder by the number of their round, the oldest first.

    They are not read.
    """
    folder = Path(folder)
    by_round = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        name = ROUND_FOLDER.fullmatch(path.name)
        if name is not None and path.is_dir():
            by_round[int(name[1])] = path
    return dict(sorted(by_round.items()))


def write_checkpoint(
    path: str | os.PathLike[str],
    content: dict[str, Any],
    disk: Disk = DISK,
    shared: SharedHistory | None = None,
) -> None:
    """Write a tree of plain values, arrays and tensors as a folder; replace an existing one.

    The records in ``content["history"]`` are written once for all checkpoints with the same
    ``shared``. Of ``content["files"]``, paths by name, it has copies. If the machine stops at any
    time, the folder is complete or does not exist.

    Raises ``OSError`` if it cannot be written.
    """
    path = Path(path)
    shared = SharedHistory() if shared is None else shared
    new_folder = _without_leftovers(temporary_path(path, "new"), disk)
    try:
        if not path.parent.exists():
            make_folders(path.parent, disk)
        disk.make_folder(new_folder)
        if "history" in content:
            history = shared.write(new_folder, content["history"], disk)
            content = {**content, "history": history}
        if "files" in content:
            content = {**content, "files": _copied(content["files"], new_folder, disk)}
        write_state(new_folder, content, disk)
        if path.exists():
            delete_checkpoint(path, disk)
        disk.rename(new_folder, path)
        disk.sync(path.parent)
        shared.completed(path)
        _LOG.info("wrote %s", path)
    except BaseException as error:
        disk.remove(new_folder)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def _copied(files: Mapping[str, Path], folder: Path, disk: Disk) -> dict[str, str]:
    """Copy files to a folder; return their checksums by name."""
    for name, path in files.items():
        disk.write(folder / name, partial(shutil.copyfile, path))
        disk.sync(folder / name)
    return {name: sha256_of_file(folder / name) for name in files}


def _checked(files: Mapping[str, str], folder: Path) -> dict[str, Path]:
    """Return the paths of files; raise ``BadCheckpointError`` if one is missing or damaged."""
    for name, sha256 in files.items():
        try:
            if sha256_of_file(folder / name) != sha256:
                reason = f"{name} is damaged: its checksum is not the one in {STATE}"
                raise BadCheckpointError(folder, reason)
        except OSError as error:
            raise BadCheckpointError(folder, f"{name} cannot be read: {error}") from error
    return {name: folder / name for name in files}


def delete_checkpoint(path: Path, disk: Disk = DISK) -> None:
    """Remove a checkpoint; it is renamed first, so that no partial checkpoint is read."""
    old_folder = _without_leftovers(temporary_path(path, "old"), disk)
    disk.rename(path, old_folder)
    disk.remove(old_folder)


def prune_checkpoints(folder: Path, keep: Container[int | None], disk: Disk = DISK) -> None:
    """Remove the checkpoints of all rounds not in ``keep``.

    Also removes partial ones of dead processes of this machine.
    """
    for number, path in list_checkpoints(folder).items():
        if number not in keep:
            delete_checkpoint(path, disk)
    prefix = f".{socket.gethostname()}."
    for path in folder.glob(".round-*"):
        owner = path.name.rpartition(prefix)[2].partition(".")[0]
        if prefix in path.name and owner.isdigit() and not is_running(int(owner)):
            disk.remove(path)


def temporary_path(path: Path, suffix: str) -> Path:
    """Return a path beside ``path`` that belongs to this process."""
    return path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.{suffix}")


def _without_leftovers(path: Path, disk: Disk) -> Path:
    """Remove the leftovers of a killed process with the same id: containers reuse ids."""
    disk.remove(path)
    return path


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content that ``write_checkpoint`` wrote.

    Raises ``BadCheckpointError`` like ``read_state``.
    """
    path = Path(path)
    content = read_state(path)
    if "files" in content:
        content = {**content, "files": _checked(content["files"], path)}
    if "history" in content:
        content = {**content, "history": read_history(path, content["history"])}
    return content


def read_latest_checkpoint(
    folder: str | os.PathLike[str], *, warn: bool = False
) -> tuple[Path, dict[str, Any]]:
    """Return the path and content of the latest good checkpoint in a folder.

    The folder may itself be a checkpoint. ``warn`` warns if later checkpoints are damaged, naming
    the last of them and the one that is used instead.

    Raises ``FileNotFoundError`` if the folder has no checkpoint, and ``BadCheckpointError`` if all
    checkpoints are damaged or the latest undamaged one has another version. If ``folder`` is itself
    a damaged checkpoint, the message names the latest good one beside it.
    """
    folder = Path(folder)
    checkpoints = list_checkpoints(folder)
    has_name = not checkpoints and ROUND_FOLDER.fullmatch(folder.name) is not None
    is_checkpoint = has_name or (folder / STATE).exists()
    paths = [folder] if is_checkpoint else [*reversed(checkpoints.values())]
    if not paths:
        raise FileNotFoundError(f"no checkpoint in {folder}; callbacks.Checkpoint writes them")
    damaged: list[BadCheckpointError] = []
    path, content = _latest_good(paths, damaged)
    if path is not None:
        if warn and damaged:
            warn_user(f"{damaged[0]}; using {path} instead, which is the latest good one")
        return path, content
    error = damaged[0]
    if is_checkpoint:
        beside = reversed(list_checkpoints(folder.parent).values())
        with suppress(BadCheckpointError):
            error.good, _ = _latest_good([path for path in beside if path != folder], damaged)
    if error.good is None and len(damaged) > 1:
        error.reason += (
            ", and all other checkpoints of the folder are damaged, too; begin a new fit, with "
            "Checkpoint(..., overwrite=True)"
        )
    raise error


def _latest_good(
    paths: Iterable[Path], damaged: list[BadCheckpointError]
) -> tuple[Path | None, dict[str, Any]]:
    """Return the first readable path and its content; add the errors before it to ``damaged``."""
    for path in paths:
        try:
            return path, read_checkpoint(path)
        except BadCheckpointError as error:
            if not error.damaged:
                raise
            damaged.append(error)
    return None, {}
