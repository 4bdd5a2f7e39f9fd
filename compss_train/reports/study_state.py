"""The file with the state of a running study, which ``compss-train watch`` reads."""

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compss_train._utils import files, strict_json
from compss_train.exceptions import BadFileError

STUDY_FILE = "study.json"
"""The name of the file, in the folder of the study's checkpoints."""
RUNNING = "running"
"""The state of a study that trains."""
KILLED = "killed"
"""The state of one whose program has ended without saying why."""
STALE_SECONDS = 30.0
"""How long a study may write nothing: it does so every second, unless it waits for an input."""


@dataclass(frozen=True, kw_only=True)
class StudyState:
    """What a study does at a moment. Numbers that are not known are ``None``."""

    state: str
    """``"running"``, or as it has ended: ``"complete"``, ``"stopped: ..."``, ``"failed: ..."``."""
    node: str
    """The host name of its program's machine."""
    process: int
    """The number of its program's process."""
    started: float
    """Unix time at which it has begun, or gone on from a save."""
    written: float
    """Unix time of this state."""
    resumed_from: str | None
    """The save from which it has gone on, if any."""
    inputs: dict[str, int | None]
    """How many sources of samples are running, done, failed (given up), and awaited."""
    received: int
    """Samples received, in all its programs."""
    received_per_second: float | None
    """In the last ten seconds."""
    trained_per_second: float | None
    """Samples trained a second, as in the last record."""
    buffer: int
    """Samples in the workers' buffers."""
    workers: Sequence[dict[str, Any]]
    """Where each worker runs."""
    simulations: Sequence[dict[str, Any]]
    """Number and input of each simulation that runs, where, for how long, its failures so far."""
    senders: Sequence[dict[str, Any]]
    """Name of each other program that is connected, and where it runs."""
    failed: Sequence[str]
    """The first simulations that were given up."""

    def write(self, folder: Path) -> None:
        """Write it in place of an earlier state; raise ``OSError`` if that fails."""
        files.write_atomic(folder / STUDY_FILE, strict_json.dumps(vars(self)))

    @property
    def age(self) -> float:
        """Seconds since it was written."""
        return max(0.0, time.time() - self.written)

    @property
    def is_stale(self) -> bool:
        """Whether a study that was running has written nothing for long: it may be dead."""
        return self.present_state == RUNNING and self.age > STALE_SECONDS

    @property
    def present_state(self) -> str:
        """The state now: ``KILLED`` if its process was on this machine, and has ended since."""
        is_here = self.node == socket.gethostname()
        if self.state == RUNNING and is_here and not files.is_running(self.process):
            return KILLED
        return self.state


def here() -> dict[str, Any]:
    """Return where this process runs, as states have it."""
    return {"node": socket.gethostname(), "process": os.getpid()}


def study_file(path: Path) -> Path:
    """Return the file of the study in a folder: that of its checkpoints, or the one above.

    Raises ``FileNotFoundError`` if there is none, and ``ValueError`` if there are several.
    """
    if not path.is_dir():
        if path.exists():
            return path
        raise FileNotFoundError(f"{path} does not exist: {_WHICH}")
    if (path / STUDY_FILE).exists():
        return path / STUDY_FILE
    found_files = sorted(path.glob(f"*/{STUDY_FILE}"))
    if not found_files:
        raise FileNotFoundError(f"{path} has no {STUDY_FILE}: {_WHICH}")
    if len(found_files) > 1:
        folders = ", ".join(str(file.parent) for file in found_files)
        raise ValueError(f"{path} has several studies: name one of {folders}")
    return found_files[0]


_WHICH = "name the folder of the Checkpoint of a fit_online, which has the file from when it trains"


def read_study_state(path: Path) -> StudyState:
    """Return the state in a study's file or folder.

    Raises the errors of ``study_file``, and ``BadFileError`` for a file of another kind.
    """
    file = study_file(path)
    try:
        return StudyState(**strict_json.loads(file.read_bytes()))
    except (ValueError, TypeError, RecursionError) as error:
        raise BadFileError(str(file), f"is not the state of a study: {error}") from error
