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
"""What programs write for a number: separators of thousands, decimal commas, percent signs,
typographic minus signs, the exponents of Fortran (``1D+03``), and parentheses for negative numbers.
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


def no_number(values: Collection[Any]) -> Any:
    """Return one of the distinct values of a column of text that is no number, if most of the
    others are.

    ``None`` if the column has words, or whole numbers, which may be names of classes.
    """
    if not all(isinstance(value, str) for value in values):
        return None
    texts = sorted(values)
    others = [text for text in texts if not _is_number(text)]
    like = sum(_LIKE_A_NUMBER.fullmatch(text.strip()) is not None for text in others)
    missing = sum(text.strip().lower() in _MISSING for text in others)
    if 2 * (len(texts) - len(others) + like) <= len(texts) - missing:
        return None
    others += [text for text in texts if not others and not text.strip(" +-").isdecimal()]
    return min(
        others,
        default=None,
        key=lambda text: (_LIKE_A_NUMBER.fullmatch(text.strip()) is not None, text),
    )


def _is_number(text: str) -> bool:
    with suppress(ValueError):
        float(text)
        return "_" not in text
    return False
