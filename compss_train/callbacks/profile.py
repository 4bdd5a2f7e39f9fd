"""``Profile``: the trace of a worker's round, by ``torch.profiler``."""

import gzip
import os
from pathlib import Path

from compss_train._utils.files import atomic_path, is_special_file
from compss_train._utils.validation import check_count, warn_user
from compss_train.training.callback import Callback
from compss_train.training.trainer_base import TrainerBase


class Profile(Callback):
    """Writes a trace of one round of one worker, of 100 batches at most: docs/watching.md.

    By default this is the second round, because the first one includes start-up work.

    Parameters
    ----------
    path:
        A file whose name ends in ``.json`` or ``.json.gz``, which is replaced; folders are made.
    round:
        Which round of the fit, counted from 1; 2 by default.
    worker:
        Which worker, counted from 0; 0 by default.

    Raises ``ValueError`` for other names and numbers; before the fit for a worker that the trainer does not have,
    and ``OSError`` if the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str] = "profile.json", *, round: int = 2, worker: int = 0) -> None:
        if not str(path).endswith((".json", ".json.gz")):
            raise ValueError(f"Profile({str(path)!r}): give a name that ends in .json or .json.gz")
        self.path = Path(os.path.abspath(path))
        self.round = check_count("round", round)
        self.worker = check_count("worker", worker, least=0)
        self._first = 0
        self._written = False

    def check(self, trainer: TrainerBase) -> None:
        """Raise ``ValueError`` for a worker that does not exist, ``OSError`` if the file cannot be written."""
        workers = trainer.num_workers
        if self.worker >= workers:
            raise ValueError(f"Profile(worker={self.worker}): there are {workers} workers, counted from 0")
        if self.path.is_dir() or is_special_file(self.path):
            raise IsADirectoryError(f"{self.path} is no file that a trace can be written to; give another path")
        parent = next(folder for folder in self.path.parents if folder.exists())
        if not (parent.is_dir() and os.access(parent, os.W_OK)):
            raise PermissionError(f"Profile({str(self.path)!r}): {parent} is not a writable folder")

    def writes_to(self) -> Path:
        """Return the file of the trace."""
        return self.path

    def on_fit_start(self, trainer: TrainerBase, total_samples: int | None) -> None:
        """Count the rounds of the fit from here."""
        self._first, self._written = len(trainer.history), False

    def traced_worker(self, number: int) -> int | None:
        """Return the worker in the traced round, else ``None``."""
        return self.worker if number == self._first + self.round - 1 else None

    def write_trace(self, trainer: TrainerBase, worker: int, trace: bytes) -> None:
        """Write the trace."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(self.path) as temporary:
            temporary.write_bytes(trace if self.path.suffix == ".gz" else gzip.decompress(trace))
        self._written = True

    def on_fit_end(self, trainer: TrainerBase) -> None:
        """Warn if the fit has ended without a trace."""
        if not self._written:
            warn_user(
                f"no trace was written to {self.path}: the fit ended before its round {self.round}, or worker "
                f"{self.worker} had no samples"
            )
