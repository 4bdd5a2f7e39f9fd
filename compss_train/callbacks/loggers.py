"""Callbacks that write a run to files while it is trained: its history and its report."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from compss_train._utils.files import FolderLock, check_writable, write_atomic
from compss_train._utils.validation import check_count
from compss_train.reports import html
from compss_train.reports.history import line_of
from compss_train.reports.records import flatten
from compss_train.training.callback import Callback
from compss_train.training.stopping import TERMINATED
from compss_train.training.trainer_base import TrainerBase

RoundId: TypeAlias = tuple[int, float | None]
"""The number of a round in a file, -1 in a line without one, and the time at which it ended, which is unique."""


class _HistoryFile(Callback):
    """A file to which each round is appended as a line when it ends; existing lines stay."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = FolderLock(self.path.parent, self.path.name)

    def writes_to(self) -> Path:
        """Return the file."""
        return self.path

    def on_fit_start(self, trainer: TrainerBase, total_samples: int | None) -> None:
        """Create the file, or check that it can be appended to; raise ``OSError`` if it cannot.

        Raises ``BlockingIOError`` if another fit writes to it, of this program or another one.

        In a resumed fit, rounds after the checkpoint are removed, as they are trained again. So is an incomplete
        last line, left by a program that was killed.
        """
        check_writable(self.path)
        self._lock.acquire()
        text = self.path.read_text(encoding="utf-8", errors="replace")
        lines = text.split("\n")[:-1]
        rounds, kept = self._rounds(text, lines), len(lines)
        if trainer.resumed_from is not None:
            while kept and rounds[kept - 1][0] >= len(trainer.history):
                kept -= 1
            number, ended = rounds[kept - 1] if kept else (-1, None)
            if number < 0 or trainer.history[number]["ended"] != ended:  # the last lines are of another run
                kept = len(lines)
        if (rest := "".join(f"{line}\n" for line in lines[:kept])) != text:
            write_atomic(self.path, rest)

    def on_fit_end(self, trainer: TrainerBase) -> None:
        """Let others write to the file."""
        self._lock.release()

    def on_exception(self, trainer: TrainerBase, error: BaseException) -> None:
        """Let others write to the file."""
        self._lock.release()

    def _rounds(self, text: str, lines: Sequence[str]) -> list[RoundId]:
        """Return the round of each complete line; raise ``ValueError`` if the file has other contents."""
        raise NotImplementedError


_PREFIX = '{"round": '
"""Prefix of the first line, even if a program was killed while writing it."""


class JsonLines(_HistoryFile):
    """Appends the record of each round to a file as one line of JSON, which ``History.load`` reads.

    Several runs may append to the same file one after another.
    """

    def on_round_end(self, trainer: TrainerBase, record: dict[str, Any]) -> None:
        """Append the record."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line_of(record))

    def _rounds(self, text: str, lines: Sequence[str]) -> list[RoundId]:
        rounds: list[RoundId] = [(-1, None)] * len(lines)
        for place, line in enumerate(lines):
            with suppress(ValueError, TypeError, LookupError, RecursionError):
                record = json.loads(line)
                rounds[place] = int(record["round"]), record.get("ended")
        if rounds[0][0] < 0 if rounds else not _PREFIX.startswith(text[: len(_PREFIX)]):
            raise ValueError(
                f"{self.path} exists and its first line is no record of a round; remove it, or give another path"
            )
        return rounds


class Csv(_HistoryFile):
    """Appends each round to a file as a row of comma-separated values, without the workers.

    The first line has the names of the columns, which are those of ``History.to_frame`` without the times of
    workers. Columns that appear later, such as ``val_loss`` in a second fit, are added on the right, for which the
    file is rewritten. Lists that are not metrics are written as JSON, and so are texts with line breaks. Raises
    ``ValueError`` at the start of a fit if the file has other contents.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._columns: list[str] = []

    def on_round_end(self, trainer: TrainerBase, record: dict[str, Any]) -> None:
        """Append the row."""
        cells = {
            name: json.dumps(value)
            if isinstance(value, list | tuple) or (isinstance(value, str) and not value.isprintable())
            else value
            for name, value in flatten(record).items()
        }
        added = [name for name in cells if name not in self._columns]
        if added:
            before = list(csv.DictReader(self.path.read_text(encoding="utf-8").splitlines()))
            self._columns += added
            write_atomic(self.path, self._text([dict(zip(self._columns, self._columns, strict=True)), *before]))
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write(self._text([cells]))

    def _rounds(self, text: str, lines: Sequence[str]) -> list[RoundId]:
        columns = next(csv.reader(text.splitlines()[:1]), [])
        if columns and not {"round", "epoch"} <= set(columns):
            raise ValueError(
                f"{self.path} exists and has no rounds, its columns are {', '.join(columns)[:80]}; "
                "remove it, or give another path"
            )
        self._columns = columns if lines else []
        rounds: list[RoundId] = [(-1, None)] * len(lines)
        try:
            for place, values in enumerate(csv.reader(lines[1:]), 1):
                if not values:  # an empty line
                    continue
                cells = dict(zip(columns, values, strict=False))
                rounds[place] = int(cells["round"]), float(cells["ended"]) if cells.get("ended") else None
        except (KeyError, ValueError) as error:
            raise ValueError(
                f"{self.path} exists and has an invalid number or time of a round: {error}; remove it, or give "
                "another path"
            ) from error
        return rounds

    def _text(self, rows: Sequence[dict[str, Any]]) -> str:
        text = io.StringIO(newline="")
        csv.DictWriter(text, self._columns, lineterminator="\n").writerows(rows)
        return text.getvalue()


MAX_SHARE = 0.02
"""Maximum share of a fit's time for writing reports; each takes longer than the previous one."""
MIN_SECONDS = 5.0
"""Minimum time, in seconds, between two reports."""


def status_of(trainer: TrainerBase, error: BaseException | None = None) -> str:
    """Return how a fit has ended: ``"complete"``, ``"stopped by ..."``, ``"stopped: ..."`` or ``"failed: ..."``."""
    if isinstance(error, KeyboardInterrupt):
        return "stopped by Ctrl-C"
    if isinstance(error, SystemExit) and error.code == TERMINATED:
        return "stopped by SIGTERM"
    if error is not None:
        line = (str(error).splitlines() or [""])[0]
        return f"failed: {type(error).__name__}" + (f": {line[:300]}" if line else "")
    return "complete" if trainer.stopped is None else f"stopped: {trainer.stopped}"


class Report(Callback):
    """Writes the report of ``compss_train.reports.html`` to a file at the end of a fit, also after an exception.

    It is also written after every ``every`` rounds unless that is ``None``, but at most every few seconds, and not
    if it would take more than 2% of the time; browsers that show it reload it until the fit has ended. The file is
    replaced atomically.

    Raises ``ValueError`` unless the name ends in .html and ``every`` is an integer of at least 1 or ``None``,
    ``ModuleNotFoundError`` without the extra ``report``, and ``OSError`` at the start of a fit if the file cannot
    be written.
    """

    def __init__(self, path: str | Path, every: int | None = 1) -> None:
        self.path = Path(path)
        html.check_name(path)
        html.load_template()
        self.every = None if every is None else check_count("every", every)
        self._rounds = 0
        self._next_report = 0.0

    def writes_to(self) -> Path:
        """Return the file."""
        return self.path

    def on_fit_start(self, trainer: TrainerBase, total_samples: int | None) -> None:
        """Write a report without rounds, which checks that the file can be written."""
        self._rounds = 0
        check_writable(self.path)
        self._write_running(trainer)

    def on_round_end(self, trainer: TrainerBase, record: dict[str, Any]) -> None:
        """Write the report if it is due."""
        self._rounds += 1
        is_due = self.every is not None and self._rounds % self.every == 0
        if is_due and time.monotonic() >= self._next_report:
            self._write_running(trainer)

    def on_fit_end(self, trainer: TrainerBase) -> None:
        """Write the report."""
        self._write(trainer, status_of(trainer))

    def on_exception(self, trainer: TrainerBase, error: BaseException) -> None:
        """Write the report with the exception."""
        self._write(trainer, status_of(trainer, error))

    def _write_running(self, trainer: TrainerBase) -> None:
        start = time.monotonic()
        self._write(trainer, "running", refresh=self.every is not None)
        now = time.monotonic()
        self._next_report = now + max(MIN_SECONDS, (now - start) / MAX_SHARE)

    def _write(self, trainer: TrainerBase, status: str, *, refresh: bool = False) -> None:
        html.write(self.path, trainer.history, trainer.configuration, status=status, refresh=refresh)
