"""The history of a trainer: a list with one record per round, with tables, plots and files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, SupportsIndex, overload

import numpy as np

from compss_train._utils import files, imports, strict_json, validation
from compss_train.exceptions import BadFileError
from compss_train.reports import formatting, timeline
from compss_train.reports.records import Axis, Record, epoch_of, is_record, measured_numbers

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


SHOWN_ROUNDS = 10
"""The last rounds, which notebooks show."""
MOST_WORKER_ENTRIES = 250_000
"""Maximum number of worker entries in a history.

They are enough for 25 rounds of 10,000 workers, or 4,000 rounds of 60.
"""


class History(list[Record], validation.Suggesting):
    """A list of records, which are dicts that JSON can represent. Slices are histories, too.

    docs/watching.md explains the fields of a record. Records of early rounds lose their worker
    entries once there are more than ``MOST_WORKER_ENTRIES``, so that memory does not grow with
    workers times rounds.
    """

    _meaning = (
        "; a history is a list of dicts: [record['loss'] for record in history], or "
        "history.to_frame()['loss']"
    )

    def append(self, record: Record) -> None:
        """Add a record, and empty ``workers`` in those that are now too early to have them."""
        super().append(record)
        workers = max(1, len(record.get("workers", ())))
        kept_rounds = max(1, MOST_WORKER_ENTRIES // workers)
        early = len(self) - 1 - kept_rounds
        while early >= 0 and self[early].get("workers"):
            self[early] = {**self[early], "workers": []}
            early -= 1

    def __repr__(self) -> str:
        summary = f"history of {formatting.counted(len(self), 'round')}"
        if not self:
            return summary
        last = {**epoch_of(self[-1]), **measured_numbers(self[-1])}
        values = ", ".join(f"{name} {formatting.number(value)}" for name, value in last.items())
        return f"{summary}: {values}" if values else summary

    def _repr_html_(self) -> str:
        names = list(measured_numbers(self[-1])) if self else []
        rows = []
        for record in self[-SHOWN_ROUNDS:]:
            measured = measured_numbers(record)
            cells = [str(record["round"]), str(record.get("epoch", ""))]
            cells += [formatting.number(measured.get(name, "")) for name in names]
            cells.append(formatting.speed(record["samples_per_second"]))
            rows.append(cells)
        header = ["round", "epoch", *names, "samples/s"]
        return formatting.Table(repr(self), header, rows)._repr_html_()

    @overload
    def __getitem__(self, index: SupportsIndex) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> Self: ...

    def __getitem__(self, index: SupportsIndex | slice) -> Record | Self:
        if isinstance(index, str | tuple):
            raise TypeError(f"history[{index!r}]{self._meaning}")
        chosen = super().__getitem__(index)
        return type(self)(chosen) if isinstance(chosen, list) else chosen

    def to_frame(self, *, workers: bool = False) -> pandas.DataFrame:
        """Return a pandas ``DataFrame`` with a row per round.

        With ``workers`` it has a row per round and worker. Metrics that are lists have a column per
        item (``recall[0]``), dicts a column per key (``simulations.running``). ``training``,
        ``merging`` and ``waiting`` are in seconds, in rows of rounds the sum over all workers;
        online fits do not have them. Needs the extra ``pandas``.
        """
        pandas = imports.import_optional("pandas", extra="pandas", needed_by="to_frame")
        rows = timeline.worker_rows(self) if workers else timeline.round_rows(self)
        return pandas.DataFrame(rows)

    def plot(self, path: str | Path | None = None, *, against: Axis = "round") -> Figure:
        """Plot losses and metrics by round and by worker, the speed, and where time went.

        ``path`` is a file to save the figure to, as .png, .svg or .pdf; ``against`` is the x axis:
        ``"round"``, ``"epoch"``, ``"samples"`` trained, or ``"seconds"`` of training. Returns a
        matplotlib figure (extra ``plot``), which notebooks show, and which needs no display. Raises
        ``ValueError`` for an empty history, and for a suffix that matplotlib does not support.
        """
        imports.import_optional("matplotlib", extra="plot", needed_by="plot")
        from compss_train.reports.plots import draw

        figure = draw(self, against)
        if path is not None:
            save_figure(figure, path)
        return figure

    def save(self, path: str | Path) -> None:
        """Write the records to a file as JSON lines.

        The callback ``JsonLines`` does so during a fit. JSON has no NaN and no infinities: they are
        the texts ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``.
        """
        Path(path).write_text("".join(map(line_of, self)), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file written by ``save`` or ``JsonLines``.

        If rounds occur repeatedly, as when several runs wrote to the file, the last ones are read,
        with a warning. An incomplete last line, as after the program was killed, is skipped with a
        warning. Raises ``BadFileError`` for any other line that is not a record, and ``OSError`` if
        the file cannot be read.
        """
        return cls(_without_repetitions(list(_records(Path(path))), path))


def save_figure(figure: Figure, path: str | Path) -> None:
    """Save a figure atomically.

    Raises ``ValueError`` if matplotlib does not support the suffix of ``path``.
    """
    if Path(path).suffix.lower().removeprefix(".") not in figure.canvas.get_supported_filetypes():
        raise ValueError(
            f"{str(path)!r} is not an image file; give a name that ends in .png, .svg or .pdf"
        )
    with files.atomic_path(path) as temporary:
        figure.savefig(temporary)


def configuration_path(history: Path) -> Path:
    """Return the path of the configuration that belongs to a file with a history."""
    prefix = "" if history.stem == "history" else f"{history.stem}."
    return history.with_name(f"{prefix}configuration.json")


def line_of(record: Record) -> str:
    """Return a record as a line of JSON, with NumPy numbers as numbers and arrays as lists.

    NaN and infinities are the texts "NaN", "Infinity" and "-Infinity", which ``History.load`` makes
    numbers again.
    """
    return strict_json.dumps(record, _plain) + "\n"


def _plain(value: object) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(
        f"a record of the history has a {type(value).__name__}, which JSON cannot represent"
    )


def _records(path: Path) -> Iterator[Record]:
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        record = None
        with suppress(ValueError, RecursionError):
            record = strict_json.loads(line)
        if is_record(record):
            yield record
        elif number == len(lines) and not line.endswith(b"\n"):
            validation.warn_user(f"{path} ends with an incomplete line, which was skipped")
        else:
            raise BadFileError(str(path), f"has no record of a round in line {number}")


def _without_repetitions(records: list[Record], path: str | Path) -> list[Record]:
    """Return the records without rounds that occur again, as after another run or ``restore``."""
    kept: list[Record] = []
    for record in records:
        while kept and kept[-1]["round"] >= record["round"]:
            kept.pop()
        kept.append(record)
    num_repeated = len(records) - len(kept)
    if num_repeated:
        validation.warn_user(
            f"{path} has {num_repeated} rounds that occur again later, as in another run; only "
            "the last were read"
        )
    return kept
