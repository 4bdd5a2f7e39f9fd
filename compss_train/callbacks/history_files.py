"""Callbacks that append each round to a file when it ends: ``JsonLines`` and ``Csv``."""

import csv
import io
import itertools
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from compss_train._utils import files, strict_json, validation
from compss_train.reports import history, records
from compss_train.training.callback import Callback
from compss_train.training.trainer_protocol import TrainerProtocol


class _HistoryFile(Callback):
    """A file of one run, to which each round is appended as a line when it ends."""

    prefix: ClassVar[str]
    """The beginning of every such file, of which a program may have been killed in the middle."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = files.FolderLock(self.path.parent, self.path.name)

    def writes_to(self) -> Path:
        """Return the file."""
        return self.path

    def on_fit_start(self, trainer: TrainerProtocol, total_samples: int | None) -> None:
        """Create the file, or check that it can be appended to; raise ``OSError`` if it cannot.

        Raises ``BlockingIOError`` if another fit writes to it, of this program or another one, and
        ``ValueError`` if it has other contents.

        Rounds after those that the trainer has, as after the checkpoint of a resumed fit, are
        removed: they are trained again. So is an incomplete last line, left by a program that was
        killed. A file with rounds of another run is renamed, with a warning.
        """
        self.path = self.path.absolute()  # wherever the program is when rounds end
        files.check_writable(self.path)
        self._lock.acquire()
        text = self.path.read_text(encoding="utf-8", errors="replace")
        if not self.prefix.startswith(text[: len(self.prefix)]):
            raise ValueError(
                f"{self.path} does not begin with {self.prefix!r}; remove it, or give another path"
            )
        lines = text.split("\n")[:-1]
        rounds = [self._round_of(line, lines[0]) for line in lines]
        kept = len(lines)
        while kept and rounds[kept - 1][0] >= len(trainer.history):
            kept -= 1
        number, ended = rounds[kept - 1] if kept else (-1, None)
        is_same_run = number >= 0 and str(ended) == str(trainer.history[number]["ended"])
        saved_rounds = sum(number >= 0 for number, _ in rounds)
        kept_text = "".join(f"{line}\n" for line in lines[:kept])
        if saved_rounds and not is_same_run:
            self._begin_new_file(saved_rounds)
        elif kept_text != text:
            files.write_atomic(self.path, kept_text)
        self._writes = True

    def _begin_new_file(self, saved_rounds: int) -> None:
        """Rename the file, which has rounds of another run, and warn of it."""
        stem = self.path.stem
        names = (f"{stem}.{number}{self.path.suffix}" for number in itertools.count(1))
        paths = (self.path.with_name(name) for name in names)
        aside = next(path for path in paths if not path.exists())
        self._set_aside(aside)
        self.path.touch()
        validation.warn_user(
            f"{self.path} had {saved_rounds} rounds of another run, which are now in {aside.name}"
        )

    def on_round_end(self, trainer: TrainerProtocol, record: dict[str, Any]) -> None:
        """Append the round; if the disk is full, or fails, warn once, and write no more of the fit.

        Raises ``FileNotFoundError`` if the file or its folder was moved or removed.
        """
        if not self._writes:
            return
        try:
            self._append(record)
        except FileNotFoundError:
            raise
        except OSError as error:
            self._writes = False
            validation.warn_user(
                f"no more rounds are written to {self.path}: {error}; trainer.history has them"
            )

    def _append(self, record: dict[str, Any]) -> None:
        raise NotImplementedError

    def _set_aside(self, path: Path) -> None:
        """Rename the file of another run."""
        self.path.rename(path)

    def on_fit_end(self, trainer: TrainerProtocol) -> None:
        """Let others write to the file."""
        self._lock.release()

    def on_exception(self, trainer: TrainerProtocol, error: BaseException) -> None:
        """Let others write to the file."""
        self._lock.release()

    def _round_of(self, line: str, first: str) -> tuple[int, object]:
        """Return the number of the round in a line (-1 for none), and its unique end time."""
        with suppress(ValueError, TypeError, LookupError, RecursionError):
            record = self._parsed(line, first)
            return int(record["round"]), record.get("ended")
        return -1, None

    def _parsed(self, line: str, first: str) -> dict[str, Any]:
        """Return the record in a line; ``first`` is the first line of the file."""
        raise NotImplementedError


class JsonLines(_HistoryFile):
    """Appends the record of each round to a file as one line of JSON, which ``History.load`` reads.

    When a fit begins, ``trainer.configuration`` is written beside it, for ``compss-train compare``
    and ``report``: ``configuration.json`` for ``history.jsonl``, and ``NAME.configuration.json``
    for any other ``NAME.jsonl``. Files of another run are renamed: ``history.1.jsonl``.
    """

    prefix: ClassVar[str] = '{"round": '

    def on_fit_start(self, trainer: TrainerProtocol, total_samples: int | None) -> None:
        """Create or check the file, and write the configuration."""
        super().on_fit_start(trainer, total_samples)
        text = strict_json.dumps(trainer.configuration, indent=1)
        files.write_atomic(history.configuration_path(self.path), text)

    def _set_aside(self, path: Path) -> None:
        super()._set_aside(path)
        configuration = history.configuration_path(self.path)
        if configuration.exists():
            configuration.rename(history.configuration_path(path))

    def _append(self, record: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(history.line_of(record))

    def _parsed(self, line: str, first: str) -> dict[str, Any]:
        return dict(strict_json.loads(line))


class Csv(_HistoryFile):
    """Appends each round to a file as a row of comma-separated values, without the workers.

    The first line names the columns, which are those of ``History.to_frame`` without the times of
    workers. Columns that appear later, such as ``val_loss`` in a second fit, are added on the right
    by rewriting the file. Lists that are not metrics and texts with line breaks are written as
    JSON.
    """

    prefix: ClassVar[str] = "round,"

    def on_fit_start(self, trainer: TrainerProtocol, total_samples: int | None) -> None:
        """Create or check the file, and read its columns."""
        super().on_fit_start(trainer, total_samples)
        with self.path.open(encoding="utf-8", newline="") as file:
            self._columns = next(csv.reader(file), [])

    def _append(self, record: dict[str, Any]) -> None:
        cells = {name: _cell(value) for name, value in records.flatten(record).items()}
        added = [name for name in cells if name not in self._columns]
        if added:
            before = list(csv.DictReader(self.path.read_text(encoding="utf-8").splitlines()))
            self._columns += added
            header = dict(zip(self._columns, self._columns, strict=True))
            files.write_atomic(self.path, self._text([header, *before]))
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write(self._text([cells]))

    def _parsed(self, line: str, first: str) -> dict[str, Any]:
        columns, values = csv.reader([first, line])
        return dict(zip(columns, values, strict=False))

    def _text(self, rows: Sequence[dict[str, Any]]) -> str:
        text = io.StringIO(newline="")
        csv.DictWriter(text, self._columns, lineterminator="\n").writerows(rows)
        return text.getvalue()


def _cell(value: Any) -> Any:
    """Return a value as a cell that stays on its line: lists and texts with breaks as JSON."""
    breaks_lines = isinstance(value, str) and not value.isprintable()
    if breaks_lines or isinstance(value, list | tuple):
        return strict_json.dumps(value)
    return value
