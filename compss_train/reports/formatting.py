"""Formatting of numbers, times, durations and tables for people."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

DIGITS = 4
"""Significant digits of numbers that are not whole."""
MOST_SHOWN = 20
"""Rows of tables that notebooks show without a click."""
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def number(value: object) -> str:
    """Return a number with 4 significant digits, or in full if it is whole.

    Any other value is returned as ``str`` does.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if not math.isfinite(value):
        return str(value).replace("nan", "NaN")
    if value == int(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    if 1e-4 <= abs(value) < 1e15:
        text = f"{value:,.{_decimals(value)}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.{DIGITS - 1}e}"


def uniform_format(values: Sequence[float]) -> Callable[[float], str]:
    """Return a formatter for a column of values.

    It writes equally many decimals if the magnitudes are similar. The largest value has at least 4
    significant digits, the smallest 3.
    """
    sizes = [abs(value) for value in values if value and math.isfinite(value)]
    if not sizes or max(sizes) > 1e3 * min(sizes) or not 1e-4 <= min(sizes) <= max(sizes) < 1e15:
        return number
    whole = all(size == int(size) for size in sizes)
    decimals = 0 if whole else max(_decimals(max(sizes)), _decimals(min(sizes)) - 1)
    return lambda value: f"{value:,.{decimals}f}" if math.isfinite(value) else number(value)


def _decimals(value: float) -> int:
    return max(0, DIGITS - 1 - math.floor(math.log10(abs(value))))


def printable(text: str) -> str:
    """Return a text whose escape sequences, as names of files may have, do nothing to a terminal.

    Lines stay lines.
    """
    return "".join(
        character if character.isprintable() or character == "\n" else repr(character)[1:-1]
        for character in text
    )


def columns(
    lines: Sequence[Sequence[str]], justify: Callable[[str, int], str] = str.ljust
) -> list[str]:
    """Return lines of cells as texts with aligned columns; all lines have equally many cells."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(map(justify, cells, widths)) for cells in lines]


@dataclass(frozen=True, repr=False)
class Table:
    """A table that programs print as text, and notebooks show as HTML."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __repr__(self) -> str:
        return "\n".join([*columns([self.header, *self.rows]), self.caption])

    def _repr_html_(self) -> str:
        lines = [
            [f"<td>{escape(cell)}</td>" for cell in line] for line in (self.header, *self.rows)
        ]
        body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in lines)
        shown = " open" if len(self.rows) <= MOST_SHOWN else ""
        summary = f"<summary>{escape(self.caption)}</summary>"
        return f"<details{shown}>{summary}<table>{body}</table></details>"


def tick(value: float) -> str:
    """Return the short label of a tick, such as ``20k`` or ``1e-05``."""
    for size, letter in _PREFIXES:
        if abs(value) >= size * (10 if letter == "k" else 1):
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def counted(number: int, name: str) -> str:
    """Return a number of things, ``1 worker`` or ``2 workers``."""
    return f"{number:,} {name}{'s' * (number != 1)}"


def speed(value: float) -> str:
    """Return samples per second, millions with two decimals."""
    if value >= 1e6:
        return f"{value / 1e6:,.2f}M"
    return f"{value:,.0f}" if value >= 100 else number(value)


def percent(share: float) -> str:
    """Return a share of 1 as a percentage, with one decimal below 10%."""
    decimals = 0 if share >= 0.095 or share == 0 else 1
    return f"{100 * share:.{decimals}f}%"


def duration(seconds: float) -> str:
    """Return a duration in suitable units."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, whole_seconds = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {whole_seconds:02d} s"
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def timestamp(unix_seconds: float) -> str:
    """Return a date and time in UTC."""
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
