"""Checkpoints: what the workers of an online fit have saved, at the coordinator."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from compss_train.parameter_server.base import Closable


class Checkpoints(Closable):
    """Files in a temporary folder, the last one of each worker."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="compss_train-online-"))
        self._remove = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

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
