"""Columns of text in which most values are numbers."""

import re
from collections.abc import Collection
from contextlib import suppress
from typing import Any

_LIKE_A_NUMBER = re.compile(
    r"\(?[-+−–]?[$€£]?"  # noqa: RUF001 (minus signs and dashes)
    r"(\d{1,3}([,. '’_\u00a0\u202f]\d{3})+([.,]\d+)?|\d*[.,]?\d+|\d+[.,])([eEdD][-+−]?\d+)?"  # noqa: RUF001
    r"\s*[%$€£]?\)?"
)
"""What programs write for a number.

That is with separators of thousands, decimal commas, percent signs, typographic minus signs, the
exponents of Fortran (``1D+03``), and parentheses for negative numbers.
"""


_MISSING = {
    "",
    "?",
    "-",
    "--",
    ".",
    "na",
    "n/a",
    "nan",
    "nil",
    "none",
    "null",
    "missing",
    "unknown",
    "#n/a",
}
"""What stands for a missing number, in lower case."""


def text_among_numbers(values: Collection[Any]) -> Any:
    """Return a value that is no number in a column of text where most distinct values are.

    ``None`` if the column has words, or whole numbers, which may be names of classes.
    """
    if not all(isinstance(value, str) for value in values):
        return None
    texts = sorted(values)
    misfits = [text for text in texts if not _is_number(text)]
    alike = sum(_looks_like_a_number(text) for text in misfits)
    missing = sum(text.strip().lower() in _MISSING for text in misfits)
    numbers = len(texts) - len(misfits)
    if 2 * (numbers + alike) <= len(texts) - missing:
        return None
    if not misfits:
        misfits = [text for text in texts if not text.strip(" +-").isdecimal()]
    return min(misfits, default=None, key=lambda text: (_looks_like_a_number(text), text))


def _looks_like_a_number(text: str) -> bool:
    return _LIKE_A_NUMBER.fullmatch(text.strip()) is not None


def _is_number(text: str) -> bool:
    with suppress(ValueError):
        float(text)
        return "_" not in text
    return False
