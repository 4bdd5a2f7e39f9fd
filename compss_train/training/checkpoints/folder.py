"""A folder of checkpoints, one for each of some rounds."""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Container
from pathlib import Path
from typing import Any

from compss_train.exceptions import BadCheckpointError
from compss_train.training.checkpoints.files import STATE, read, remove

_NAME = re.compile(r"round-([0-9]{6}|[1-9][0-9]{6,})")


def path_of(folder: Path, number: int) -> Path:
    """Return where the checkpoint after a round is."""
    return folder / f"round-{number:06d}"


def checkpoints(folder: str | os.PathLike[str]) -> dict[int, Path]:
    """Return the checkpoints of a folder by the number of their round, the oldest first, without reading them."""
    folder = Path(folder)
    inside = folder.iterdir() if folder.is_dir() else ()
    found = {int(match[1]): path for path in inside if (match := _NAME.fullmatch(path.name)) and path.is_dir()}
    return dict(sorted(found.items()))


def newest(folder: str | os.PathLike[str]) -> tuple[Path, dict[str, Any]]:
    """Return the newest checkpoint of a folder, or the one that the folder itself is, and what is in it.

    Raises ``FileNotFoundError`` where there is none, and ``BadCheckpointError`` for one that is not good; the
    message names the newest one that is.
    """
    folder = Path(folder)
    found = checkpoints(folder)
    if (folder / STATE).exists() or (not found and _NAME.fullmatch(folder.name)):
        return folder, _read_or_offer(folder, checkpoints(folder.parent))
    if not found:
        raise FileNotFoundError(f"there is no checkpoint in {folder}; callbacks.Checkpoint writes them")
    path = list(found.values())[-1]
    return path, _read_or_offer(path, found)


def _read_or_offer(path: Path, others: dict[int, Path]) -> dict[str, Any]:
    try:
        return read(path)
    except BadCheckpointError as error:
        older = next((other for other in reversed(others.values()) if other != path and _is_good(other)), None)
        if older is None and len(others) > 1:
            reason = f"{error.reason}, nor is another there good; begin anew, with Checkpoint(..., overwrite=True)"
            raise BadCheckpointError(path, reason) from error
        error.good = older
        raise


def _is_good(path: Path) -> bool:
    try:
        read(path)
    except BadCheckpointError:
        return False
    return True


def purge(folder: Path, kept: Container[int | None]) -> None:
    """Remove the checkpoints of other rounds, and what killed processes of this machine have left half written."""
    for number, path in checkpoints(folder).items():
        if number not in kept:
            remove(path)
    prefix = f".{socket.gethostname()}."
    for path in folder.glob(".round-*"):
        owner = path.name.rpartition(prefix)[2].partition(".")[0]
        if prefix in path.name and owner.isdigit() and not _is_alive(int(owner)):
            shutil.rmtree(path, ignore_errors=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
