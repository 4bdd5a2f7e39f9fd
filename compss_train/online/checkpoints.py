"""Checkpoints: what the workers of an online fit have saved, at the coordinator."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from compss_train.parameter_server.base import Closable
from compss_train.temporary import LockedFolder


class Checkpoints(Closable):
    """Files in a temporary folder, the last one of each worker."""

    def __init__(self) -> None:
        folder = LockedFolder()
        self._folder = Path(folder.path)
        self._remove = weakref.finalize(self, folder.remove)
        folder.make()

    def keep(self, worker: int, saved: torch.Tensor) -> None:
        """Replace what is kept of a worker."""
        new = self._folder / f"{worker}.new"
        saved.numpy().tofile(new)
        new.replace(self._path(worker))

    def of(self, worker: int) -> Sequence[torch.Tensor]:
        """Return what is kept of a worker: one tensor of bytes, or nothing."""
        path = self._path(worker)
        return [torch.from_numpy(np.fromfile(path, np.uint8))] if path.exists() else []

    def _path(self, worker: int) -> Path:
        return self._folder / f"{worker}.saved"

    def close(self) -> None:
        """Remove the files."""
        self._remove()
