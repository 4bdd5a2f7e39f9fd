"""Checkpoints in object stores, of which there are local copies."""

import os
import shutil
import tempfile
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath

from compss_train.data.locations import file_system, is_remote
from compss_train.model.saved_state import STATE
from compss_train.training.checkpoints import ROUND_FOLDER, list_checkpoints


class RemoteFolder:
    """The checkpoints in a folder of an object store, with a local copy while this object lives.

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
        """Copy a checkpoint to the store, inside the store what earlier ones have, too."""
        # The state is last: without it a checkpoint counts as damaged.
        for file in sorted(path.iterdir(), key=lambda file: file.name == STATE):
            target = f"{self._path}/{path.name}/{file.name}"
            earlier = self._earlier_with(file)
            if earlier is not None:
                with suppress(OSError, NotImplementedError):  # the store may not allow copies
                    self._system.cp_file(f"{self._path}/{earlier.name}/{file.name}", target)
                    continue
            self._system.put_file(str(file), target)
        self._uploaded.append(path)

    def _earlier_with(self, file: Path) -> Path | None:
        """Return a checkpoint that was uploaded and shares this file, or ``None``."""
        for checkpoint in self._uploaded:
            shared = checkpoint / file.name
            if checkpoint != file.parent and shared.exists() and file.samefile(shared):
                return checkpoint
        return None

    def prune(self) -> None:
        """Remove from the store the checkpoints that the local folder no longer has.

        Other files of the store are not ours.
        """
        if not self._system.exists(self._path):
            return
        local_names = {path.name for path in list_checkpoints(self.copy).values()}
        for name in self._system.ls(self._path, detail=False):
            folder = name.rstrip("/").rpartition("/")[2]
            if ROUND_FOLDER.fullmatch(folder) and folder not in local_names:
                self._system.rm(name, recursive=True)


@contextmanager
def local_copy(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a local path as it is, or a copy of a file or folder of an object store."""
    name = os.fspath(path)
    if not is_remote(name):
        yield Path(name)
        return
    system, source = file_system(name.rstrip("/"))
    if not system.exists(source):
        raise FileNotFoundError(f"{name} does not exist")
    with tempfile.TemporaryDirectory(prefix="checkpoints-") as folder:
        copy = Path(folder, PurePath(source).name)
        system.get(source, str(copy), recursive=True)
        yield copy
