"""What a run, or a fit of a script's own, has left behind of how it went."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from compss_train.cli.run_files.folder import RunFolder
from compss_train.cli.run_files.problems import RunFileError
from compss_train.reports.history import History


def read_history(path: Path) -> tuple[Path, History]:
    """Return the history in a file of JSON lines, or in a run's folder, and where it is.

    Raises ``RunFileError`` where it has no round, ``BadFileError`` and ``OSError`` for what cannot be read.
    """
    file = RunFolder(path).history if path.is_dir() else path
    history = History.load(file)
    if not history:
        raise RunFileError(f"{file} has no round yet")
    return file, history


def read_configuration(folder: Path) -> dict[str, Any]:
    """Return what a run wrote down of its trainer, nothing where there is no such file."""
    path = RunFolder(folder).described
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
