"""Checkpoints on disk: written under a temporary name and renamed, verified when they are read.

::

    folder/
        round-000012/
            arrays.safetensors     parameters, optimizer and random states: every array
            history-000000.jsonl   the records of the history but the last one, in files that
            checkpoints share state.json             everything else, and the checksums of all
"""

import logging
import os
import re
import shutil
import socket
import tempfile
import weakref
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Self, TypeAlias

import numpy as np

from compss_train._utils.files import DISK, Disk, is_running, make_folders
from compss_train._utils.validation import warn_user
from compss_train.data.locations import file_system, is_remote
from compss_train.data.partitioning import ResumePoint
from compss_train.exceptions import BadCheckpointError
from compss_train.model.devices import RandomState
from compss_train.model.parameters import Parameters
from compss_train.model.saved_state import STATE, read_state, sha256_of_file, write_state
from compss_train.training.shared_history import SharedHistory, read_history
from compss_train.worker.state import WorkerState

_LOG = logging.getLogger(__name__)
_ROUND_FOLDER = re.compile(r"round-([0-9]{6}|[1-9][0-9]{6,})")


def checkpoint_path(folder: Path, number: int) -> Path:
    """Return the path of the checkpoint after a round."""
    return folder / f"round-{number:06d}"


class RemoteFolder:
    """The checkpoints in a folder of an object store, and a local copy that lives as long as this
    object.

    Stores cannot rename: the state of a checkpoint is uploaded last, and without it a checkpoint is
    damaged.
    """

    def __init__(self, url: str) -> None:
        self._system, self._path = file_system(url)
        self.copy = Path(tempfile.mkdtemp(prefix="checkpoints-"))
        weakref.finalize(self, shutil.rmtree, self.copy, ignore_errors=True)
        self._downloaded = False
        self._uploaded = deque[Path](maxlen=2)
        """The last checkpoints that were uploaded."""

    def download(self) -> None:
        """Copy the checkpoints to the local folder, once."""
        if not self._downloaded and self._system.exists(self._path):
            self._system.get(f"{self._path}/", f"{self.copy}/", recursive=True)
        self._downloaded = True

    def upload(self, path: Path) -> None:
        """Copy a checkpoint to the store; what it shares with earlier ones is copied inside the
        store.
        """
        for file in sorted(path.iterdir(), key=lambda file: file.name == STATE):
            target = f"{self._path}/{path.name}/{file.name}"
            earlier = (
                each for each in self._uploaded if each != path and (each / file.name).exists()
            )
            shared = next((each for each in earlier if file.samefile(each / file.name)), None)
            if shared is not None:
                with suppress(OSError, NotImplementedError):  # the store may not allow copies
                    self._system.cp_file(f"{self._path}/{shared.name}/{file.name}", target)
                    continue
            self._system.put_file(str(file), target)
        self._uploaded.append(path)

    def prune(self) -> None:
        """Remove the checkpoints that the local folder no longer has; other files of the store are
        not ours.
        """
        here = {path.name for path in list_checkpoints(self.copy).values()}
        for name in (
            self._system.ls(self._path, detail=False) if self._system.exists(self._path) else ()
        ):
            folder = name.rstrip("/").rpartition("/")[2]
            if _ROUND_FOLDER.fullmatch(folder) and folder not in here:
                self._system.rm(name, recursive=True)


@contextmanager
def local_copy(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a local path unchanged; for a file or folder of an object store, a copy that exists in
    the block.
    """
    if not is_remote(name := os.fspath(path)):
        yield Path(name)
        return
    system, source = file_system(name.rstrip("/"))
    if not system.exists(source):
        raise FileNotFoundError(f"{name} does not exist")
    with tempfile.TemporaryDirectory(prefix="checkpoints-") as folder:
        copy = Path(folder, PurePath(source).name)
        system.get(source, str(copy), recursive=True)
        yield copy


def list_checkpoints(folder: str | os.PathLike[str]) -> dict[int, Path]:
    """Return the checkpoints of a folder by the number of their round, the oldest first, without
    reading them.
    """
    folder = Path(folder)
    entries = folder.iterdir() if folder.is_dir() else ()
    found = {
        int(match[1]): path
        for path in entries
        if (match := _ROUND_FOLDER.fullmatch(path.name)) and path.is_dir()
    }
    return dict(sorted(found.items()))


def write_checkpoint(
    path: str | os.PathLike[str],
    content: dict[str, Any],
    disk: Disk = DISK,
    shared: SharedHistory | None = None,
) -> None:
    """Write a tree of plain values, arrays and tensors as the folder ``path``, replacing an
    existing one.

    The records in ``content["history"]`` are written once for all checkpoints with the same
    ``shared``. Of ``content["files"]``, paths by name, it has copies. If the machine stops at any
    time, the folder is complete or does not exist.

    Raises ``OSError`` if it cannot be written.
    """
    path = Path(path)
    shared = SharedHistory() if shared is None else shared
    new = _without_leftovers(temporary_path(path, "new"), disk)
    try:
        if not path.parent.exists():
            make_folders(path.parent, disk)
        disk.make_folder(new)
        if "history" in content:
            content = {**content, "history": shared.write(new, content["history"], disk)}
        if "files" in content:
            content = {**content, "files": _copied(content["files"], new, disk)}
        write_state(new, content, disk)
        if path.exists():
            delete_checkpoint(path, disk)
        disk.rename(new, path)
        disk.sync(path.parent)
        shared.completed(path)
        _LOG.info("wrote %s", path)
    except BaseException as error:
        disk.remove(new)
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
                raise BadCheckpointError(
                    folder, (f"{name} is damaged: its checksum is not the one in {STATE}")
                )
        except OSError as error:
            raise BadCheckpointError(folder, f"{name} cannot be read: {error}") from error
    return {name: folder / name for name in files}


def delete_checkpoint(path: Path, disk: Disk = DISK) -> None:
    """Remove a checkpoint; it is renamed first, so that no partial checkpoint is read."""
    old = _without_leftovers(temporary_path(path, "old"), disk)
    disk.rename(path, old)
    disk.remove(old)


def prune_checkpoints(folder: Path, keep: Container[int | None], disk: Disk = DISK) -> None:
    """Remove the checkpoints of all rounds not in ``keep``, and partial ones of dead processes of
    this machine.
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
    """Return the content that ``write_checkpoint`` wrote; raise ``BadCheckpointError`` like
    ``read_state``.
    """
    content = read_state(path := Path(path))
    if "files" in content:
        content = {**content, "files": _checked(content["files"], path)}
    return (
        {**content, "history": read_history(path, content["history"])}
        if "history" in content
        else content
    )


def read_latest_checkpoint(
    folder: str | os.PathLike[str], *, warn: bool = False
) -> tuple[Path, dict[str, Any]]:
    """Return the path and content of the latest good checkpoint in a folder; the folder may itself
    be a checkpoint.

    ``warn`` warns if later checkpoints are damaged, naming the last of them and the one that is
    used instead.

    Raises ``FileNotFoundError`` if the folder has no checkpoint, and ``BadCheckpointError`` if all
    checkpoints are damaged or the latest undamaged one has another version. If ``folder`` is itself
    a damaged checkpoint, the message names the latest good one beside it.
    """
    folder = Path(folder)
    found = list_checkpoints(folder)
    is_one = (folder / STATE).exists() or (
        not found and _ROUND_FOLDER.fullmatch(folder.name) is not None
    )
    paths = [folder] if is_one else [*reversed(found.values())]
    if not paths:
        raise FileNotFoundError(f"no checkpoint in {folder}; callbacks.Checkpoint writes them")
    damaged: list[BadCheckpointError] = []
    path, content = _latest_good(paths, damaged)
    if path is not None:
        if warn and damaged:
            warn_user(f"{damaged[0]}; using {path} instead, which is the latest good one")
        return path, content
    error = damaged[0]
    if is_one:
        paths = [
            path for path in reversed(list_checkpoints(folder.parent).values()) if path != folder
        ]
        with suppress(BadCheckpointError):
            error.good, _ = _latest_good(paths, damaged)
    if error.good is None and len(damaged) > 1:
        error.reason += (
            ", and all other checkpoints of the folder are damaged, too; begin a new fit, with "
            "Checkpoint(..., overwrite=True)"
        )
    raise error


def _latest_good(
    paths: Iterable[Path], damaged: list[BadCheckpointError]
) -> tuple[Path | None, dict[str, Any]]:
    """Return the first readable path and its content; append the errors of the paths before it to
    ``damaged``.
    """
    for path in paths:
        try:
            return path, read_checkpoint(path)
        except BadCheckpointError as error:
            if not error.damaged:
                raise
            damaged.append(error)
    return None, {}


@dataclass(frozen=True, eq=False, kw_only=True)
class Progress:
    """The progress of a fit, and the values that its rounds depend on."""

    options: dict[str, Any]
    """The options of the fit and its objective, as plain values."""
    sizes: tuple[int, ...]
    """The number of samples of each block or file."""
    first_epoch: int
    """The first epoch of the fit, counted over all fits of the trainer."""
    reached: ResumePoint
    fingerprint: int | None = None
    """The fingerprint of the data, if they were available."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Study:
    """A save of ``fit_online``: one cut through the parameters, the workers and the simulations."""

    content: dict[str, Any]
    """All but the following, as plain values, arrays and tensors."""
    parameters: Parameters
    workers: tuple[WorkerState, ...]
    files: dict[str, Path]
    """The workers' buffers, files by name."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Snapshot:
    """The state of a trainer, without what the resuming program provides again."""

    parameters: Parameters
    """The global parameters."""
    workers: tuple[WorkerState, ...]
    """The optimizer and random state of each worker."""
    epoch: int
    """The number of started epochs of all fits."""
    history: list[dict[str, Any]]
    setting: dict[str, Any]
    """The settings of the trainer and its network, to be compared on resuming."""
    progress: Progress | None
    """The progress of the running ``fit``; ``None`` between fits and in ``fit_online``, which has a
    study.
    """
    callbacks: dict[str, Any]
    """The state of each callback that has one."""
    schedule: dict[str, Any]
    """The state of the learning-rate schedule that does not follow from the epoch."""
    merge: dict[str, Any] = field(default_factory=dict)
    """What merges keep besides the parameters."""
    study: dict[str, Any] | None = None
    """The content of the save of ``fit_online`` that it belongs to."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """Its files by name, which are copied."""

    def to_dict(self) -> dict[str, Any]:
        """Return the snapshot as plain values; ``files`` are paths."""
        progress = self.progress and {
            **vars(self.progress),
            "reached": _fields(self.progress.reached),
        }
        return {
            **vars(self),
            "workers": [worker_to_dict(state) for state in self.workers],
            "progress": progress,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], path: Path) -> Self:
        """Return the snapshot from its plain values, which were read from a checkpoint.

        Raises ``BadCheckpointError`` for workers or progress that no trainer has written, with a
        right checksum.
        """
        try:
            saved = content["progress"]
            progress = (
                None
                if saved is None
                else Progress(**{**saved, "reached": ResumePoint(**saved["reached"])})
            )
            workers = tuple(worker_from_dict(state) for state in content["workers"])
            return cls(**{**content, "workers": workers, "progress": progress})
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise BadCheckpointError(
                path, f"its state is not that of a trainer: {error}"
            ) from error


def _fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass with slots."""
    return {name: getattr(value, name) for name in value.__slots__}


def worker_to_dict(state: WorkerState) -> dict[str, Any]:
    """Return the state of a worker as plain values."""
    if isinstance(state.random, int):
        return _fields(state)
    version, numbers, gauss = state.random.python
    python = {"version": version, "numbers": np.array(numbers, np.int64), "gauss": gauss}
    return {**_fields(state), "random": {**_fields(state.random), "python": python}}


def worker_from_dict(saved: Mapping[str, Any]) -> WorkerState:
    """Return the state of a worker from its plain values."""
    random = saved["random"]
    if isinstance(random, int):
        return WorkerState(**saved)
    python = random["python"]
    state = (python["version"], tuple(python["numbers"].tolist()), python["gauss"])
    return WorkerState(**{**saved, "random": RandomState(**{**random, "python": state})})


Checkpoint: TypeAlias = tuple[Path, Snapshot]
"""The path of a checkpoint and its content."""
