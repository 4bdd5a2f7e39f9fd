"""Callbacks that write the history to files while a fit runs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from compss_train._utils.files import check_writable, write_whole
from compss_train.reports.history import line_of
from compss_train.reports.records import flatten
from compss_train.training.callback import Callback, TrainerProtocol

Round: TypeAlias = tuple[int, float | None]
"""A round in a file: its number, -1 for what is none, and when it ended, which no two rounds have in common."""


class _HistoryFile(Callback):
    """A file that each round adds to, as soon as it ends; what is there already stays."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def writes_to(self) -> Path:
        """Return the file."""
        return self.path

    def on_fit_start(self, trainer: TrainerProtocol, total_samples: int | None) -> None:
        """Make the file, or make sure that it can be added to; raises ``OSError`` where it cannot.

        In a resumed fit, the rounds that had come after the checkpoint are removed: they are trained again. So is
        what a program that was killed has not written to its end.
        """
        check_writable(self.path)
        rows = self._rows()
        self._keep(rows if trainer.resumed_from is None else self._continued(rows, trainer.history))

    def _continued(self, rows: list[Any], history: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Return the rows that stay when a run goes on from a history; all, if they are of others."""
        kept = len(rows)
        while kept and self._round_of(rows[kept - 1])[0] >= len(history):
            kept -= 1
        number, ended = self._round_of(rows[kept - 1]) if kept else (-1, None)
        return rows[:kept] if number >= 0 and history[number]["ended"] == ended else rows

    def _rows(self) -> list[Any]:
        """Return what is complete; raise ``ValueError`` where the file holds something else than rounds."""
        raise NotImplementedError

    def _round_of(self, row: Any) -> Round:
        raise NotImplementedError

    def _keep(self, rows: list[Any]) -> None:
        """Remove all but these rows, with which the file begins."""
        raise NotImplementedError


_BEGINNING = b'{"round": '
"""What the first line begins with, also where a program was killed that wrote it."""


class JsonLines(_HistoryFile):
    """Appends each round's record to a file as one line of JSON, which ``History.load`` reads.

    Runs that are given the same file follow each other in it.
    """

    def on_round_end(self, trainer: TrainerProtocol, record: dict[str, Any]) -> None:
        """Append the record."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line_of(record))

    def _rows(self) -> list[bytes]:
        content = self.path.read_bytes()
        lines = [line for line in content.splitlines(keepends=True) if line.endswith(b"\n")]
        begins = _BEGINNING.startswith(content[: len(_BEGINNING)])
        if self._round_of(lines[0])[0] < 0 if lines else not begins:
            raise ValueError(
                f"{self.path} is there and its first line is no round's record; remove it, or give another path"
            )
        return lines

    def _round_of(self, row: bytes) -> Round:
        with suppress(ValueError, TypeError, LookupError):
            record = json.loads(row)
            return int(record["round"]), record.get("ended")
        return -1, None

    def _keep(self, rows: list[bytes]) -> None:
        with self.path.open("r+b") as file:
            file.truncate(sum(map(len, rows)))


class Csv(_HistoryFile):
    """Appends each round to a file as a row of comma-separated values, without the workers.

    The first line names the columns, which are those of ``History.to_frame`` but for the workers' times. Columns
    that come later, such as ``val_loss`` from the second fit on, are added to the right, for which the file is
    written anew. Lists that are no metrics are JSON. Raises ``ValueError`` at the fit's start where the file that
    is there holds something else.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._columns: list[str] = []

    def on_round_end(self, trainer: TrainerProtocol, record: dict[str, Any]) -> None:
        """Append the row."""
        cells = {name: _cell(value) for name, value in flatten(record).items()}
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
                f"{self.path} is there and holds no rounds, its columns are {', '.join(self._columns)[:80]}; "
                "remove it, or give another path"
            )
        rows = self._read()
        for cells in rows:
            self._round_of(cells)
        return rows

    def _round_of(self, row: Mapping[str, str]) -> Round:
        try:
            return int(row["round"]), float(row["ended"]) if row.get("ended") else None
        except ValueError as error:
            raise ValueError(
                f"{self.path} is there and holds what is no number of a round, or no time: {error}; remove it, or "
                "give another path"
            ) from error

    def _keep(self, rows: list[dict[str, str]]) -> None:
        if len(rows) < len(self._read()) or not self._text().endswith("\n"):
            self._write(rows)

    def _text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    def _read(self) -> list[dict[str, str]]:
        """Return the rows that are complete."""
        text = self._text()
        return list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))

    def _write(self, rows: Iterable[Mapping[str, object]]) -> None:
        text = io.StringIO(newline="")
        writer = self._writer(text)
        if self._columns:
            writer.writeheader()
        writer.writerows(rows)
        write_whole(self.path, text.getvalue())

    def _writer(self, file: TextIO) -> csv.DictWriter[str]:
        return csv.DictWriter(file, self._columns, lineterminator="\n")


def _cell(value: object) -> object:
    return json.dumps(value) if isinstance(value, list | tuple) else value
