"""A path that exists while a fit of this program is unfinished, for the scripts of batch jobs.

A library cannot set the exit code of its program. So a script that is to queue its job again names
a path in ``COMPSS_TRAIN_UNFINISHED``, and looks whether it exists when the program has ended.
"""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from weakref import WeakSet

from compss_train.training.stopping import MAX_TIME, SIGTERM, TERMINATED
from compss_train.training.trained_model import TrainedModel

VARIABLE = "COMPSS_TRAIN_UNFINISHED"
"""Environment variable with the path: a folder, with a file for each process that has fits."""


class _UnfinishedFits:
    """The models of this process whose last fit has begun and is not complete."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models: WeakSet[TrainedModel] = WeakSet()
        self._count = 0
        """The number of models, of which some may have been collected."""

    def add(self, folder: Path, model: TrainedModel) -> None:
        with self._lock:
            folder.mkdir(parents=True, exist_ok=True)
            _file_in(folder).touch()
            if model not in self._models:
                self._models.add(model)
                self._count += 1

    def remove(self, folder: Path, model: TrainedModel) -> None:
        with self._lock:
            self._models.discard(model)
            self._count -= 1
            if not self._count:
                _file_in(folder).unlink(missing_ok=True)
                with suppress(OSError):  # another process has unfinished fits
                    folder.rmdir()


_FITS = _UnfinishedFits()


def _file_in(folder: Path) -> Path:
    return folder / f"{socket.gethostname()}-{os.getpid()}"


@contextmanager
def noted(model: TrainedModel) -> Iterator[None]:
    """Let the path exist from now on until a fit of the model is complete or fails.

    A fit that ``max_time`` or SIGTERM has stopped is unfinished, and stays so until another fit of
    the model is complete. Raises ``OSError`` if the path cannot be made.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        yield
        return
    folder = Path(path).absolute()
    try:
        _FITS.add(folder, model)
    except OSError as error:
        error.add_note(f"{VARIABLE}={path}: give a path that can be made a folder, or unset it")
        raise
    try:
        yield
    except BaseException as error:
        if not (isinstance(error, SystemExit) and error.code == TERMINATED):
            _FITS.remove(folder, model)
        raise
    if model.stopped not in (MAX_TIME, SIGTERM):
        _FITS.remove(folder, model)
