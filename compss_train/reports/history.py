"""The history of a trainer: one record a round, as tables, plots and files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, SupportsIndex, overload

import numpy as np

from compss_train._utils.optional_imports import import_optional
from compss_train._utils.validation import warn_user
from compss_train.exceptions import BadFileError
from compss_train.reports.columns import round_rows, worker_rows
from compss_train.reports.timeline import Record

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from compss_train.reports.curves import Axis


class History(list[Record]):
    """A list of records, plain dicts that JSON can hold; slices are histories, too.

    docs/watching.md explains what is in a record.
    """

    @overload
    def __getitem__(self, index: SupportsIndex) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> Self: ...

    def __getitem__(self, index: SupportsIndex | slice) -> Record | Self:
        chosen = super().__getitem__(index)
        return type(self)(chosen) if isinstance(chosen, list) else chosen

    def to_frame(self, workers: bool = False) -> pandas.DataFrame:
        """Return a pandas table with a row a round, or with ``workers`` a row a round and worker.

        Metrics that are lists have a column an item (``recall[0]``), dicts one a key (``simulations.running``).
        ``training``, ``merging`` and ``waiting`` are seconds, summed over the workers in the rows of rounds; online
        fits have none. Needs pandas: the extra ``pandas``.
        """
        pandas = import_optional("pandas", extra="pandas", needed_by="to_frame")
        return pandas.DataFrame(worker_rows(self) if workers else round_rows(self))

    def plot(self, path: str | Path | None = None, *, against: Axis = "round") -> Figure:
        """Draw losses and metrics by round and by worker, samples/s, and what the workers spent their time on.

        ``path`` is a file to save the figure to, as .png, .svg or .pdf; ``against`` is what the curves are drawn
        over: ``"round"``, ``"epoch"``, ``"samples"`` trained, or ``"seconds"`` of training. Returns the figure of
        matplotlib (the extra ``plot``), which needs no display. Raises ``ValueError`` where there is no record yet,
        and for a name that does not end as matplotlib's files do.
        """
        import_optional("matplotlib", extra="plot", needed_by="plot")
        from compss_train.reports.plots import draw

        figure = draw(self, against)
        if path is not None:
            if isinstance(path, str | os.PathLike):
                check_name(figure, path)
            figure.savefig(path)
        return figure

    def save(self, path: str | Path) -> None:
        """Write the records to a file, as JSON lines; the callback ``JsonLines`` does so while a fit runs."""
        Path(path).write_text("".join(map(line_of, self)), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what ``save`` or ``JsonLines`` wrote.

        Of rounds that come more than once, as where several runs wrote them, the last are read, with a warning.
        A last line that was cut off, as when the program was killed, is left out with a warning. Raises
        ``BadFileError`` for any other line that holds no record, and ``OSError`` where the file cannot be read.
        """
        return cls(_without_repeated(list(_records(Path(path))), path))


def check_name(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Raise ``ValueError`` where a file's name does not tell a format that matplotlib can save the figure in."""
    if Path(path).suffix.lower().removeprefix(".") not in figure.canvas.get_supported_filetypes():
        raise ValueError(f"{str(path)!r} names no kind of picture; give a name that ends in .png, .svg or .pdf")


def line_of(record: Record) -> str:
    """Return a record as a line of JSON; numbers and arrays of numpy are written as Python's and as lists."""
    return json.dumps(record, default=_plain) + "\n"


def _plain(value: object) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"a record of the history holds a {type(value).__name__}, which JSON cannot hold")


def _records(path: Path) -> Iterator[Record]:
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        record = _parsed(line)
        if _is_record(record):
            yield record
        elif number == len(lines) and not line.endswith(b"\n"):
            warn_user(f"{path} ends within a line, which was left out")
        else:
            raise BadFileError(str(path), f"holds no record of a round in line {number}")


def _without_repeated(records: list[Record], path: str | Path) -> list[Record]:
    """Return the records without those that later ones repeat, as another run does, or one that was restored."""
    kept: list[Record] = []
    for record in records:
        while kept and kept[-1]["round"] >= record["round"]:
            kept.pop()
        kept.append(record)
    if repeated := len(records) - len(kept):
        warn_user(
            f"{path} holds {repeated} rounds that later ones repeat, as of another run; only the last were read"
        )
    return kept


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _is_record(value: object) -> bool:
    return isinstance(value, dict) and {"round", "epoch", "samples", "workers"} <= value.keys()
