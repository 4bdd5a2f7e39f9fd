"""Callbacks that write the history to files while a fit runs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

from compss_train.callbacks.base import Callback
from compss_train.columns import row
from compss_train.history import line_of
from compss_train.whole_files import check_writable, write_whole

if TYPE_CHECKING:
    from compss_train.trainer import DistributedTrainer


Round: TypeAlias = tuple[int, float | None]
"""A round in a file: its number, -1 for what is none, and when it ended, which no two rounds have in common."""


class _HistoryFile(Callback):
    """A file that each round adds to, as soon as it ends; what is there already stays."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def writes_to(self) -> Path:
        """Return the file."""
        return self.path

    def on_fit_start(self, trainer: DistributedTrainer, total_samples: int | None) -> None:
        """Make the file, or make sure that it can be added to; raises ``OSError`` where it cannot.

        In a resumed fit, the rounds that had come after the checkpoint are removed: they are trained again. So is
        what a program that was killed has not written to its end.
        """
        check_writable(self.path)
        rounds = self._rounds()
        self._keep(len(rounds) if trainer.resumed_from is None else _continued(rounds, trainer.history))

    def _rounds(self) -> list[Round]:
        """Return the rounds that are complete; raise ``ValueError`` where the file holds something else."""
        raise NotImplementedError

    def _keep(self, count: int) -> None:
        """Remove all but the first so many rounds."""
        raise NotImplementedError


def _continued(rounds: Sequence[Round], history: Sequence[Mapping[str, Any]]) -> int:
    """Return how many rounds of a file stay when its run goes on from a history; all, if they are of others."""
    kept = len(rounds)
    while kept and rounds[kept - 1][0] >= len(history):
        kept -= 1
    number, ended = rounds[kept - 1] if kept else (-1, None)
    return kept if number >= 0 and history[number]["ended"] == ended else len(rounds)


_BEGINNING = b'{"round": '
"""What the first line begins with, also where a program was killed that wrote it."""


class JsonLines(_HistoryFile):
    """Appends each round's record to a file as one line of JSON, which ``History.load`` reads.

    Runs that are given the same file follow each other in it.
    """

    def on_round_end(self, trainer: DistributedTrainer, record: dict[str, Any]) -> None:
        """Append the record."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line_of(record))

    def _rounds(self) -> list[Round]:
        rounds = [_round_of(line) for line in self._lines()]
        begins = self.path.read_bytes()[: len(_BEGINNING)]
        if rounds[0][0] < 0 if rounds else not _BEGINNING.startswith(begins):
            raise ValueError(
                f"{self.path} is there and its first line is no round's record; remove it, or give another path"
            )
        return rounds

    def _keep(self, count: int) -> None:
        with self.path.open("r+b") as file:
            file.truncate(sum(map(len, self._lines()[:count])))

    def _lines(self) -> list[bytes]:
        return [line for line in self.path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def _round_of(line: bytes) -> Round:
    with suppress(ValueError, TypeError, LookupError):
        record = json.loads(line)
        return int(record["round"]), record.get("ended")
    return -1, None


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

    def _rounds(self) -> list[Round]:
        self._columns = list(csv.DictReader(self._text().splitlines()).fieldnames or ())
        if self._columns and not {"round", "epoch"} <= set(self._columns):
            raise ValueError(
                f"{self.path} is there and holds no rounds, its columns are {', '.join(self._columns)[:80]}; "
                "remove it, or give another path"
            )
        return [self._round_of(cells) for cells in self._read()]

    def _keep(self, count: int) -> None:
        rows = self._read()
        if count < len(rows) or not self._text().endswith("\n"):
            self._write(rows[:count])

    def _round_of(self, cells: Mapping[str, str]) -> Round:
        try:
            return int(cells["round"]), float(cells["ended"]) if cells.get("ended") else None
        except ValueError as error:
            raise ValueError(
                f"{self.path} is there and holds what is no number of a round, or no time: {error}; remove it, or "
                "give another path"
            ) from error

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
