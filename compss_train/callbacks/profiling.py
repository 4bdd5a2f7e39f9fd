"""``Profile``: writes a trace of one round of one worker."""

import gzip
import os
from pathlib import Path

from compss_train._utils import files, validation
from compss_train.training.callback import Callback
from compss_train.training.trainer_protocol import TrainerProtocol


class Profile(Callback):
    """Writes a trace of one round of one worker, with at most 100 batches: docs/watching.md.

    By default this is the second round, because the first one includes start-up work.

    Parameters
    ----------
    path:
        A file whose name ends in ``.json`` or ``.json.gz``; an existing one is replaced, and
        missing folders are created.
    round:
        Which round of the fit, counted from 1; 2 by default.
    worker:
        Which worker, counted from 0; 0 by default.

    Raises ``ValueError`` for other names and numbers; before a fit, ``ValueError`` for a worker
    that the trainer does not have, and ``OSError`` if the file cannot be written.
    """

    def __init__(
        self, path: str | os.PathLike[str] = "profile.json", *, round: int = 2, worker: int = 0
    ) -> None:
        if not str(path).endswith((".json", ".json.gz")):
            raise ValueError(f"Profile({str(path)!r}): give a name that ends in .json or .json.gz")
        self.path = Path(os.path.abspath(path))
        self.round = validation.check_count("round", round)
        self.worker = validation.check_count("worker", worker, least=0)
        self._first = 0
        self._written = False

    def check(self, trainer: TrainerProtocol) -> None:
        """Raise ``ValueError`` for a worker that does not exist, ``OSError`` for a bad folder."""
        workers = trainer.num_workers
        if self.worker >= workers:
            raise ValueError(
                f"Profile(worker={self.worker}): there are {workers} workers, counted from 0"
            )
        parent = next(folder for folder in self.path.parents if folder.exists())
        if not (parent.is_dir() and os.access(parent, os.W_OK)):
            raise PermissionError(f"Profile({str(self.path)!r}): {parent} is not a writable folder")

    def writes_to(self) -> Path:
        """Return the file of the trace."""
        return self.path

    def on_fit_start(self, trainer: TrainerProtocol, total_samples: int | None) -> None:
        """Count the rounds of the fit from here."""
        self._first = len(trainer.history)
        self._written = False

    def traced_worker(self, number: int) -> int | None:
        """Return the worker in the traced round, else ``None``."""
        return self.worker if number == self._first + self.round - 1 else None

    def write_trace(self, trainer: TrainerProtocol, worker: int, trace: bytes) -> None:
        """Write the trace."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with files.atomic_path(self.path) as temporary:
            temporary.write_bytes(trace if self.path.suffix == ".gz" else gzip.decompress(trace))
        self._written = True

    def on_fit_end(self, trainer: TrainerProtocol) -> None:
        """Warn if the fit has ended without a trace."""
        if not self._written:
            validation.warn_user(
                f"no trace was written to {self.path}: the fit ended before its round "
                f"{self.round}, or worker {self.worker} had no samples"
            )
