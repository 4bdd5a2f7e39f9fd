"""``RunFolder``: the files in the folder of a run, and what its history and configuration say of it."""

import json
import os
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compss_train._utils.files import is_running, write_atomic
from compss_train.cli.run_files import RUN_FILE
from compss_train.reports.comparison import ComparedRun, comparison_table
from compss_train.reports.history import History

RUNNING = "running"
"""The state of a run whose process has not ended."""
KILLED = "killed"
"""The state of a run whose process has ended without a word."""


class RunFolder:
    """The paths of a run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_file = path / RUN_FILE
        """The run file with all settings."""
        self.configuration = path / "configuration.json"
        """``trainer.configuration`` at the start of the fit: all options, versions and the machine."""
        self.history = path / "history.jsonl"
        """The history as JSON lines, one a round."""
        self.parameters = path / "parameters.safetensors"
        """The final parameters; after an interrupted fit, those of the last complete round."""
        self.checkpoints = path / "checkpoints"
        """The folder of checkpoints."""
        self.report = path / "report.html"
        """The HTML page with curves and the timeline of the workers."""
        self.state_file = path / "run.json"
        """The state of the run as JSON, with its process."""
        self.csv = path / "history.csv"
        """The history as CSV."""
        self.tensorboard = path / "tensorboard"
        """The log folder of TensorBoard."""
        self.profile = path / "profile.json"
        """The trace of a worker's round, under its default name."""

    @property
    def has_results(self) -> bool:
        """Whether a run has completed a round here."""
        rounds = self.history.exists() and self.history.stat().st_size > 0
        return rounds or self.parameters.exists() or self.has_checkpoints

    @property
    def has_checkpoints(self) -> bool:
        """Whether the folder holds a checkpoint."""
        return any(self.checkpoints.glob("round-*"))

    def write_state(self, state: str) -> None:
        """Write the state of the run of this process."""
        text = json.dumps({"state": state, "host": socket.gethostname(), "pid": os.getpid()})
        write_atomic(self.state_file, text)

    def state(self) -> str | None:
        """Return the state of the run, as ``"complete"``, ``RUNNING`` or ``"stopped by ..."``; ``None`` if unknown.

        It is ``KILLED`` if the process that wrote ``RUNNING`` on this machine has ended.
        """
        try:
            written = json.loads(self.state_file.read_text(encoding="utf-8"))
            state, host, pid = str(written["state"]), written["host"], int(written["pid"])
        except (OSError, ValueError, TypeError, KeyError):
            return None
        ended = state == RUNNING and host == socket.gethostname() and not is_running(pid)
        return KILLED if ended else state

    def existing_files(self) -> list[Path]:
        """Return the files and folders that exist."""
        results = [self.parameters, self.history, self.csv, self.report, self.profile]
        settings = [self.run_file, self.configuration, self.state_file]
        return [path for path in (*results, *settings, self.checkpoints, self.tensorboard) if path.exists()]

    def clear(self) -> None:
        """Remove the files of a run, and no others."""
        for path in self.existing_files():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def check_parent_folder(output: Path) -> None:
    """Raise ``FileNotFoundError`` unless the folder of an output file exists."""
    if not output.parent.is_dir():
        raise FileNotFoundError(
            f"{output}: the folder {output.parent} does not exist; create it, or name another file"
        )


def read_history(path: Path) -> tuple[Path, History]:
    """Return the history in a file of JSON lines or in a run's folder, after the path of the file.

    Raises ``ValueError`` for an empty history, ``BadFileError`` and ``OSError`` for a file that cannot be read.
    """
    file = RunFolder(path).history if path.is_dir() else path
    history = History.load(file)
    if not history:
        raise ValueError(f"{file} has no round yet")
    return file, history


def read_configuration(folder: Path) -> dict[str, Any]:
    """Return the trainer's configuration that a run has saved, empty if the folder does not have it."""
    path = RunFolder(folder).configuration
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def read_compared(paths: Sequence[Path]) -> list[ComparedRun]:
    """Return runs to compare; raises as ``read_history`` does."""
    runs = []
    for path in paths:
        file, history = read_history(path)
        state = RunFolder(path).state() if path.is_dir() else None
        settings = read_configuration(file.parent)
        runs.append(ComparedRun(name=str(path), history=history, configuration=settings, state=state or ""))
    return runs


def read_summary(folder: RunFolder) -> dict[str, str]:
    """Return a row about a run: its state, what it reached, and how long it took."""
    row = {"run": str(folder.path), "state": folder.state() or "unknown"}
    history = History.load(folder.history) if folder.history.exists() else History()
    run = ComparedRun(name=row["run"], history=history, configuration={}, state=row["state"])
    cells = comparison_table([run])[0]
    return {name: value for name, value in cells.items() if not name.startswith("best ")}
