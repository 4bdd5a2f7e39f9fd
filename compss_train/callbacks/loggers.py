"""Callbacks that write a run to files while it is trained: its history, its report, and the trace
of a round.
"""

import csv
import gzip
import io
import itertools
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from compss_train._utils import files, strict_json, validation
from compss_train.reports import history, html, records
from compss_train.training.callback import Callback
from compss_train.training.stopping import TERMINATED
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
        is_own = number >= 0 and str(ended) == str(trainer.history[number]["ended"])
        if (found := sum(number >= 0 for number, _ in rounds)) and not is_own:
            names = (
                self.path.with_name(f"{self.path.stem}.{n}{self.path.suffix}")
                for n in itertools.count(1)
            )
            aside = next(name for name in names if not name.exists())
            self._set_aside(aside)
            self.path.touch()
            validation.warn_user(
                f"{self.path} had {found} rounds of another run, which are now in {aside.name}"
            )
        elif (rest := "".join(f"{line}\n" for line in lines[:kept])) != text:
            files.write_atomic(self.path, rest)
        self._writes = True

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
        """Return the number of the round in a line, and when it ended, which is unique; -1 for
        other lines.
        """
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
        if (told := history.configuration_path(self.path)).exists():
            told.rename(history.configuration_path(path))

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
        cells = {
            name: strict_json.dumps(value)
            if isinstance(value, list | tuple)
            or (isinstance(value, str) and not value.isprintable())
            else value
            for name, value in records.flatten(record).items()
        }
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


MAX_SHARE = 0.02
"""Maximum share of a fit's time for writing reports; each takes longer than the previous one."""
MIN_SECONDS = 5.0
"""Minimum time, in seconds, between two reports."""


def status_of(trainer: TrainerProtocol, error: BaseException | None = None) -> str:
    """Return how a fit has ended: ``"complete"``, ``"stopped by ..."``, ``"stopped: ..."`` or
    ``"failed: ..."``.
    """
    if isinstance(error, KeyboardInterrupt):
        return "stopped by Ctrl-C"
    if isinstance(error, SystemExit) and error.code == TERMINATED:
        return "stopped by SIGTERM"
    if error is not None:
        line = (str(error).splitlines() or [""])[0]
        return f"failed: {type(error).__name__}" + (f": {line[:300]}" if line else "")
    return "complete" if trainer.stopped is None else f"stopped: {trainer.stopped}"


class Report(Callback):
    """Writes the report of ``compss_train.reports.html`` to a file at the end of a fit, also after
    an exception.

    During the fit it is written after a round, but only every few seconds, and taking at most 2% of
    the time. Browsers reload the page until the fit has ended. The file is replaced atomically.

    Raises ``ValueError`` unless the name ends in .html, ``ModuleNotFoundError`` without the extra
    ``report``, and ``OSError`` at the start of a fit if the file cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        html.check_name(path)
        html.load_template()
        self._next_report = 0.0

    def writes_to(self) -> Path:
        """Return the file."""
        return self.path

    def on_fit_start(self, trainer: TrainerProtocol, total_samples: int | None) -> None:
        """Write a report without rounds, which checks that the file can be written."""
        files.check_writable(self.path)
        self._write_running(trainer)

    def on_round_end(self, trainer: TrainerProtocol, record: dict[str, Any]) -> None:
        """Write the report if it is due."""
        if time.monotonic() >= self._next_report:
            self._write_running(trainer)

    def on_fit_end(self, trainer: TrainerProtocol) -> None:
        """Write the report."""
        self._write(trainer, status_of(trainer))

    def on_exception(self, trainer: TrainerProtocol, error: BaseException) -> None:
        """Write the report with the exception."""
        self._write(trainer, status_of(trainer, error))

    def _write_running(self, trainer: TrainerProtocol) -> None:
        start = time.monotonic()
        self._write(trainer, "running")
        now = time.monotonic()
        self._next_report = now + max(MIN_SECONDS, (now - start) / MAX_SHARE)

    def _write(self, trainer: TrainerProtocol, status: str) -> None:
        html.write(
            self.path,
            trainer.history,
            trainer.configuration,
            status=status,
            refresh=status == "running",
        )


class Profile(Callback):
    """Writes a trace of one round of one worker, with at most 100 batches: docs/watching.md.

    By default this is the second round, because the first one includes start-up work.

    Parameters
    ----------
    path:
        A file whose name ends in ``.json`` or ``.json.gz``; an existing one is replaced, and
        missing folders are created.
    round:
        Which round of the fit, counted from 1; 2 by default.
    worker:
        Which worker, counted from 0; 0 by default.

    Raises ``ValueError`` for other names and numbers; before a fit, ``ValueError`` for a worker
    that the trainer does not have, and ``OSError`` if the file cannot be written.
    """

    def __init__(
        self, path: str | os.PathLike[str] = "profile.json", *, round: int = 2, worker: int = 0
    ) -> None:
        if not str(path).endswith((".json", ".json.gz")):
            raise ValueError(f"Profile({str(path)!r}): give a name that ends in .json or .json.gz")
        self.path = Path(os.path.abspath(path))
        self.round = validation.check_count("round", round)
        self.worker = validation.check_count("worker", worker, least=0)
        self._first = 0
        self._written = False

    def check(self, trainer: TrainerProtocol) -> None:
        """Raise ``ValueError`` for a worker that does not exist, ``OSError`` if the file cannot be
        written.
        """
        workers = trainer.num_workers
        if self.worker >= workers:
            raise ValueError(
                f"Profile(worker={self.worker}): there are {workers} workers, counted from 0"
            )
        parent = next(folder for folder in self.path.parents if folder.exists())
        if not (parent.is_dir() and os.access(parent, os.W_OK)):
            raise PermissionError(f"Profile({str(self.path)!r}): {parent} is not a writable folder")

    def writes_to(self) -> Path:
        """Return the file of the trace."""
        return self.path

    def on_fit_start(self, trainer: TrainerProtocol, total_samples: int | None) -> None:
        """Count the rounds of the fit from here."""
        self._first = len(trainer.history)
        self._written = False

    def traced_worker(self, number: int) -> int | None:
        """Return the worker in the traced round, else ``None``."""
        return self.worker if number == self._first + self.round - 1 else None

    def write_trace(self, trainer: TrainerProtocol, worker: int, trace: bytes) -> None:
        """Write the trace."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with files.atomic_path(self.path) as temporary:
            temporary.write_bytes(trace if self.path.suffix == ".gz" else gzip.decompress(trace))
        self._written = True

    def on_fit_end(self, trainer: TrainerProtocol) -> None:
        """Warn if the fit has ended without a trace."""
        if not self._written:
            validation.warn_user(
                f"no trace was written to {self.path}: the fit ended before its round "
                f"{self.round}, or worker {self.worker} had no samples"
            )
