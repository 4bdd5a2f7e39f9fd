"""``LiveReport``: the report of a run that may still be running, which follows the files in the run's folder."""

import os
import threading
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from compss_train.cli.run_files.run_folder import RunFolder, read_configuration
from compss_train.exceptions import BadFileError
from compss_train.reports.history import History
from compss_train.reports.html.page import page_parts, title_of_run, whole_page

MAX_SHARE = 0.01
"""Largest share of the time for making reports, as the run may be on the same machine."""


class LiveReport:
    """The parts of a run's report, each with the version in which it changed last.

    It reads the run's files only, and again when they have changed. Threads of several viewers may call it.

    Raises ``FileNotFoundError`` if no run is at ``path``, a folder or a history in JSON lines, and ``BadFileError``
    for a history that is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path if path.is_dir() else path.parent)
        self._history = self.folder.history if path.is_dir() else path
        if not any(map(os.path.exists, self._files())) or not path.exists():
            raise FileNotFoundError(f"{path}: no run is here; compss-train runs lists the folders of runs")
        self.rounds = 0
        """Of the history when it was read last."""
        self._lock = threading.Lock()
        self._parts: dict[str, tuple[int, str]] = {}
        self._version = 0
        self._title = ""
        self._seen: Any = None
        self._next_reading = 0.0
        self._read()

    def page(self) -> str:
        """Return the whole page, which asks its server for what changes later."""
        version, parts = self.changes(0)
        return whole_page(self._title, parts, version=version)

    def changes(self, version: int) -> tuple[int, dict[str, str]]:
        """Return the newest version, and the parts that have changed since ``version``."""
        with self._lock:
            if time.monotonic() >= self._next_reading and self._state() != self._seen:
                with suppress(OSError, BadFileError):  # a run that starts again replaces its files: a moment later
                    self._read()
            return self._version, {name: part for name, (at, part) in self._parts.items() if at > version}

    def _read(self) -> None:
        start, state = time.monotonic(), self._state()
        history, configuration = self._load_history(), read_configuration(self.folder.path)
        parts = page_parts(history, configuration, self.folder.state())
        self._version += 1
        for name, part in parts.items():
            if part != self._parts.get(name, (0, None))[1]:
                self._parts[name] = self._version, part
        self._title, self.rounds, self._seen = title_of_run(configuration), len(history), state
        now = time.monotonic()
        self._next_reading = now + (now - start) / MAX_SHARE

    def _load_history(self) -> History:
        """Return the complete rounds, without the warning that a line is being written."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return History.load(self._history) if self._history.exists() else History()

    def _files(self) -> tuple[Path, Path, Path]:
        return self._history, self.folder.state_file, self.folder.configuration

    def _state(self) -> Any:
        """Return what differs if a file has changed, or the run's process has ended."""
        return self.folder.state(), [_stamp(path) for path in self._files()]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Return what differs between two contents of a file, ``None`` without a file."""
    with suppress(OSError), path.open("rb") as file:  # opened, as NFS may know a closed file as it was
        found = os.fstat(file.fileno())
        return found.st_ino, found.st_size, found.st_mtime_ns
    return None
