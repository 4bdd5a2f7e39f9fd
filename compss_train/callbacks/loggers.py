"""Callbacks that write the history to files during a fit."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from compss_train._utils.files import FolderLock, check_writable, write_atomic
from compss_train.reports.history import line_of
from compss_train.reports.records import flatten
from compss_train.training.callback import Callback, TrainerProtocol

RoundId: TypeAlias = tuple[int, float | None]
"""The number of a round in a file, -1 for an invalid row, and the time at which it ended, which is unique."""


class _HistoryFile(Callback):
    """A file to which each round is appended when it ends; existing rows stay."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = FolderLock(self.path.parent, self.path.name)

    def writes_to(self) -> Path:
        """Return the file."""
        return self.path

    def on_fit_start(self, trainer: TrainerProtocol, total_samples: int | None) -> None:
        """Create the file, or check that it can be appended to; raise ``OSError`` if it cannot.

        Raises ``BlockingIOError`` if another fit writes to it, of this program or another one.

        In a resumed fit, rounds after the checkpoint are removed, as they are trained again. So is an incomplete
        last row, left by a program that was killed.
        """
        check_writable(self.path)
        self._lock.acquire()
        rows = self._rows()
        self._truncate(rows if trainer.resumed_from is None else self._resumed(rows, trainer.history))

    def on_fit_end(self, trainer: TrainerProtocol) -> None:
        """Let others write to the file."""
        self._lock.release()

    def on_exception(self, trainer: TrainerProtocol, error: BaseException) -> None:
        """Let others write to the file."""
        self._lock.release()

    def _resumed(self, rows: list[Any], history: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Return the rows that stay when a run resumes with ``history``; all if they belong to other runs."""
        kept = len(rows)
        while kept and self._round_of(rows[kept - 1])[0] >= len(history):
            kept -= 1
        number, ended = self._round_of(rows[kept - 1]) if kept else (-1, None)
        return rows[:kept] if number >= 0 and history[number]["ended"] == ended else rows

    def _rows(self) -> list[Any]:
        """Return the complete rows; raise ``ValueError`` if the file has other contents than rounds."""
        raise NotImplementedError

    def _round_of(self, row: Any) -> RoundId:
        raise NotImplementedError

    def _truncate(self, rows: list[Any]) -> None:
        """Remove all but ``rows``, which are the first ones of the file."""
        raise NotImplementedError


_PREFIX = b'{"round": '
"""Prefix of the first line, even if a program was killed while writing it."""


class JsonLines(_HistoryFile):
    """Appends the record of each round to a file as one line of JSON, which ``History.load`` reads.

    Several runs may append to the same file one after another.
    """

    def on_round_end(self, trainer: TrainerProtocol, record: dict[str, Any]) -> None:
        """Append the record."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line_of(record))

    def _rows(self) -> list[bytes]:
        content = self.path.read_bytes()
        lines = [line for line in content.splitlines(keepends=True) if line.endswith(b"\n")]
        has_prefix = _PREFIX.startswith(content[: len(_PREFIX)])
        if self._round_of(lines[0])[0] < 0 if lines else not has_prefix:
            raise ValueError(
                f"{self.path} exists and its first line is no record of a round; remove it, or give another path"
            )
        return lines

    def _round_of(self, row: bytes) -> RoundId:
        with suppress(ValueError, TypeError, LookupError, RecursionError):
            record = json.loads(row)
            return int(record["round"]), record.get("ended")
        return -1, None

    def _truncate(self, rows: list[bytes]) -> None:
        with self.path.open("r+b") as file:
            file.truncate(sum(map(len, rows)))


class Csv(_HistoryFile):
    """Appends each round to a file as a row of comma-separated values, without the workers.

    The first line has the names of the columns, which are those of ``History.to_frame`` without the times of
    workers. Columns that appear later, such as ``val_loss`` in a second fit, are added on the right, for which the
    file is rewritten. Lists that are not metrics are written as JSON. Raises ``ValueError`` at the start of a fit
    if the file has other contents.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._columns: list[str] = []

    def on_round_end(self, trainer: TrainerProtocol, record: dict[str, Any]) -> None:
        """Append the row."""
        cells = {
            name: json.dumps(value) if isinstance(value, list | tuple) else value
            for name, value in flatten(record).items()
        }
        if not cells.keys() <= set(self._columns):
            rows = self._read()
            self._columns += [name for name in cells if name not in self._columns]
            self._write(rows)
        with self.path.open("a", encoding="utf-8", newline="") as file:
            self._writer(file).writerow(cells)

    def _rows(self) -> list[dict[str, str]]:
        self._columns = list(csv.DictReader(self._text().splitlines()).fieldnames or ())
        if self._columns and not {"round", "epoch"} <= set(self._columns):
            raise ValueError(
                f"{self.path} exists and has no rounds, its columns are {', '.join(self._columns)[:80]}; "
                "remove it, or give another path"
            )
        rows = self._read()
        for cells in rows:
            self._round_of(cells)
        return rows

    def _round_of(self, row: Mapping[str, str]) -> RoundId:
        try:
            return int(row["round"]), float(row["ended"]) if row.get("ended") else None
        except ValueError as error:
            raise ValueError(
                f"{self.path} exists and has an invalid number or time of a round: {error}; remove it, or give "
                "another path"
            ) from error

    def _truncate(self, rows: list[dict[str, str]]) -> None:
        if len(rows) < len(self._read()) or not self._text().endswith("\n"):
            self._write(rows)

    def _text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    def _read(self) -> list[dict[str, str]]:
        """Return the complete rows."""
        text = self._text()
        return list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))

    def _write(self, rows: Iterable[Mapping[str, object]]) -> None:
        text = io.StringIO(newline="")
        writer = self._writer(text)
        if self._columns:
            writer.writeheader()
        writer.writerows(rows)
        write_atomic(self.path, text.getvalue())

    def _writer(self, file: TextIO) -> csv.DictWriter[str]:
        return csv.DictWriter(file, self._columns, lineterminator="\n")
