"""What columns of numbers must hold, what they become, and what users should know of it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compss_train.data.classes import quote_values
from compss_train.data.layout import FileContentError


def check_complete(name: str, is_missing: NDArray[np.bool_], first: int = 0) -> None:
    """Raise ``FileContentError`` if a column lacks values.

    ``is_missing`` has an entry for each row from row ``first``.
    """
    rows = np.flatnonzero(is_missing)
    if len(rows):
        values = "a value" if len(rows) == 1 else f"{len(rows)} values"
        raise FileContentError(
            f"lacks {values} in {name!r}, the first in row {first + rows[0]}: fill them in, "
            "remove these rows, or leave the column out"
        )


def check_numbers(name: str, dtype: object) -> None:
    """Raise ``FileContentError`` unless a column of this dtype has numbers or booleans."""
    if not isinstance(dtype, np.dtype) or dtype.kind not in "biuf":
        raise FileContentError(
            f"holds {dtype} in {name!r}, which are no numbers: convert them, or leave the column "
            "out"
        )


def float_dtype(dtype: np.dtype[Any], floats: str | None) -> np.dtype[Any]:
    """Return ``floats`` in place of floating-point dtypes, and other dtypes unchanged.

    ``floats`` is the dtype of a network's parameters; ``None`` leaves all dtypes unchanged.
    """
    return np.dtype(floats) if floats is not None and dtype.kind == "f" else dtype


def conversion_note(dtype: str, floats: str) -> str:
    """Return the note for users when numbers of ``dtype`` are converted to ``floats``."""
    return (
        f"{dtype} becomes {floats}, the dtype of the network's parameters; convert the data, or "
        "the network (net.double()), if this is not what you want"
    )


def codes_note(codes: Sequence[str], name: str, dtype: object, *, source: str = "") -> str:
    """Return the note for users when class codes in columns of ``name`` become floats.

    ``codes`` are the columns and ``dtype`` that of the floats. ``source`` is what the columns are
    taken from: ``"frame"``, or nothing for files, to which their names are given.
    """
    return (
        f"{quote_values(codes)} in {name} are class codes, and become {dtype} like the numbers "
        f"beside them; for an nn.Embedding give the codes apart, as in {_apart(codes, source)}, "
        "which stay integers"
    )


def integers_remark(integers: Sequence[str], name: str, dtype: object, *, source: str = "") -> str:
    """Return the remark for users when integers in columns of ``name`` become floats.

    Parameters are those of ``codes_note``.
    """
    return (
        f"the integers of {quote_values(integers)} in {name} become {dtype}, like the numbers "
        f"beside them; if they are codes, give them apart, as in {_apart(integers, source)}"
    )


def _apart(columns: Sequence[str], source: str) -> str:
    names = f"[{quote_values(columns)}]"
    codes = f"{source}[{names}]" if source else names
    return f"x={{'numbers': ..., 'codes': {codes}}}"
