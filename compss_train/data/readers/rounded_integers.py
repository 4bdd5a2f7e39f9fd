"""Integers of 2**63 and more, which Arrow reads as floats, and rounds, where it infers types."""

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from compss_train.data.arrow_columns import import_pyarrow
from compss_train.data.layout import FileContentError


def large_floats(table: Any, names: Collection[str]) -> Iterator[tuple[str, list[int]]]:
    """Iterate over the columns of floats with values of 2**63 and more, and the rows of these.

    Columns in ``names`` are left out: their types were given, not inferred.
    """
    types = import_pyarrow().types
    for number, field in enumerate(table.schema):
        if field.name in names or not types.is_floating(field.type):
            continue
        values = table.column(number).to_numpy()
        rows = np.flatnonzero((values >= 2.0**63) | (values < -(2.0**63)))
        if len(rows):
            yield field.name, rows.tolist()


def rounding_error(name: str, row: int, text: str, advice: str) -> FileContentError:
    """Return the error for an integer that was rounded to a float."""
    return FileContentError(
        f"holds {text} in {name!r}, in row {row}, and the largest integer of a tensor is 2**63 - "
        f"1: give {advice}, if it may be rounded to a float"
    )
