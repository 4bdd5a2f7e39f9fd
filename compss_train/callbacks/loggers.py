"""Callbacks that write the history to files while a fit runs."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from compss_train.callbacks.base import Callback
from compss_train.columns import row
from compss_train.history import line_of
from compss_train.whole_files import check_writable, write_whole

if TYPE_CHECKING:
    from compss_train.trainer import DistributedTrainer


class _HistoryFile(Callback):
    """A file that each round adds to, as soon as it ends; what is there already stays."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._resumed = False

    def writes_to(self) -> Path:
        """Return the file."""
        return self.path

    def on_fit_start(self, trainer: DistributedTrainer, total_samples: int | None) -> None:
        """Make the file, or make sure that it can be added to; raises ``OSError`` where it cannot.

        In a resumed fit, the rounds that had come after the checkpoint are removed: they are trained again.
        """
        check_writable(self.path)
        first = len(trainer.history) if self._resumed else sys.maxsize
        self._resumed = False
        self._go_on(first)

    def _go_on(self, first: int) -> None:
        """Remove rounds from this number on, and what a program that was killed has not written to its end."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return the file's name: a fit that goes on with another file leaves that as it is."""
        return {"path": str(self.path)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take note that the next fit is a resumed one."""
        self._resumed = state.get("path") == str(self.path)


class JsonLines(_HistoryFile):
    """Appends each round's record to a file as one line of JSON, which ``History.load`` reads.

    Runs that are given the same file follow each other in it.
    """

    def on_round_end(self, trainer: DistributedTrainer, record: dict[str, Any]) -> None:
        """Append the record."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line_of(record))

    def _go_on(self, first: int) -> None:
        lines = self.path.read_bytes().splitlines(keepends=True)
        if lines and lines[0].endswith(b"\n") and _round_of(lines[0]) < 0:
            raise ValueError(
                f"{self.path} is there and its first line is no round's record; remove it, or give another path"
            )
        while lines and (not lines[-1].endswith(b"\n") or _round_of(lines[-1]) >= first):
            lines.pop()
        with self.path.open("r+b") as file:
            file.truncate(sum(map(len, lines)))


def _round_of(line: bytes) -> int:
    """Return the number of the round that a line holds, -1 where it holds none."""
    with suppress(ValueError, TypeError, LookupError):
        return int(json.loads(line)["round"])
    return -1


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

    def on_round_end(self, trainer: DistributedTrainer, record: dict[str, Any]) -> None:
        """Append the row."""
        cells = {name: _cell(value) for name, value in row(record).items()}
        if not cells.keys() <= set(self._columns):
            rows = self._read()
            self._columns += [name for name in cells if name not in self._columns]
            self._write(rows)
        with self.path.open("a", encoding="utf-8", newline="") as file:
            self._writer(file).writerow(cells)

    def _go_on(self, first: int) -> None:
        text = self.path.read_text(encoding="utf-8")
        self._columns = list(csv.DictReader(text.splitlines()).fieldnames or ())
        if self._columns and not {"round", "epoch"} <= set(self._columns):
            raise ValueError(
                f"{self.path} is there and holds no rounds, its columns are {', '.join(self._columns)[:80]}; "
                "remove it, or give another path"
            )
        rows = self._read()
        kept = [cells for cells in rows if self._round_of(cells) < first]
        if len(kept) < len(rows) or not text.endswith("\n"):
            self._write(kept)

    def _round_of(self, cells: Mapping[str, str]) -> int:
        try:
            return int(cells["round"])
        except ValueError as error:
            raise ValueError(
                f"{self.path} is there and has {cells['round']!r} for a round; remove it, or give another path"
            ) from error

    def _read(self) -> list[dict[str, str]]:
        """Return the rows that are complete."""
        text = self.path.read_text(encoding="utf-8")
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
