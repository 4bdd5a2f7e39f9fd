"""Tables of predictions: a row for each sample, with classes, probabilities or outputs."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compss_train.data.arrow_columns import import_pyarrow


def table_of(
    output: np.ndarray[Any, Any], classes: Sequence[Any], *, as_classes: bool
) -> dict[str, Any]:
    """Return the columns of outputs, which are numbers of classes if ``as_classes``."""
    rows = output.reshape(len(output), -1)
    if as_classes and output.ndim == 1 and classes:
        return {"class": _class_names(output, classes)}
    names = [f"output {number}" for number in range(rows.shape[1])]
    if len(classes) == rows.shape[1]:
        names = [str(name) for name in classes]
    return dict(zip(names, rows.T, strict=True))


def _class_names(numbers: np.ndarray[Any, Any], classes: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Return the classes of these numbers; those without a name are named by their output."""
    unnamed = [f"output {number}" for number in range(len(classes), int(numbers.max()) + 1)]
    names: np.ndarray[Any, Any] = np.take([*classes, *unnamed], numbers)
    return names


def table_of_probabilities(
    probabilities: np.ndarray[Any, Any], classes: Sequence[Any], *, binary: bool
) -> dict[str, Any]:
    """Return the class of each sample and the probabilities; the latter alone of several labels.

    Those that are ``binary`` are of class 1, for each output.
    """
    rows = probabilities.reshape(len(probabilities), -1)
    named = [str(name) for name in classes]
    if binary and rows.shape[1] == 1:
        numbers = (rows[:, 0] > 0.5).astype(np.int64)
        names = [named[1] if len(named) == 2 else "probability"]
    else:
        numbers = rows.argmax(axis=1)
        names = [f"class {number}" for number in range(rows.shape[1])]
        if len(named) == rows.shape[1]:
            names = named
    columns = dict(zip(names, rows.T, strict=True))
    if probabilities.ndim > 2 or (binary and rows.shape[1] > 1):
        return columns
    best = _class_names(numbers, classes) if classes else numbers
    return {"class" if "class" not in columns else "predicted class": best, **columns}


def write_table(
    path: Path, name: str, identifiers: Sequence[Any], *, columns: Mapping[str, Any]
) -> None:
    """Write a row for each sample: what identifies it, in a column called ``name``, and columns."""
    if name in columns:
        raise ValueError(
            f"--ids {name}: a column of the outputs has this name; name another "
            "column, or write .npy"
        )
    if path.suffix == ".parquet":
        table = import_pyarrow().table([identifiers, *columns.values()], names=[name, *columns])
        import_pyarrow("pyarrow.parquet").write_table(table, path)
        return
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([name, *columns])
        values = [column.tolist() for column in columns.values()]
        writer.writerows(zip(identifiers, *values, strict=True))
