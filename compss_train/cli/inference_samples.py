"""The samples that ``compss-train evaluate`` and ``predict`` read, and what identifies them."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from compss_train.cli import run_files
from compss_train.cli.run_files import data, objects
from compss_train.data import FileDataset, locations, readers, reading
from compss_train.data.readers.base import select_keys
from compss_train.data.readers.images import SUFFIXES as IMAGE_SUFFIXES


def read_pair(
    names: Sequence[str], run_file: run_files.RunFile, x: Sequence[str] = ()
) -> data.Dataset:
    """Return x and y: two ``.npy`` files, or files that hold both.

    Their arrays have the names of ``[data]``, or x that of ``x``.
    """
    if not all(name.endswith(".npy") for name in names):
        return data.Dataset(read_samples(names, run_file, x=x, targets=True))
    if len(names) != 2:
        raise ValueError(
            f"{names[0]} is x alone: name one other .npy file, y; the same one if samples are "
            "their own targets"
        )
    return data.Dataset(data.load_array(names[0], "x"), data.load_array(names[1], "y"))


def _files_of(name: str) -> list[str]:
    """Return the files of a name or pattern; of a folder of images without classes, the images."""
    if not os.path.isdir(name):
        return locations.file_names(name)
    below = locations.files_below(name)
    images = [file for file in below if file.lower().endswith(IMAGE_SUFFIXES)]
    if not images or any("/" in file for file in images):
        return locations.file_names(name)
    return [os.path.join(name, file) for file in sorted(images)]


def read_samples(
    names: Sequence[str],
    run_file: run_files.RunFile,
    *,
    x: Sequence[str] = (),
    targets: bool = False,
) -> FileDataset:
    """Return files that hold x, and with ``targets`` y.

    A single array is x if no targets are needed. ``x`` names an array, or several columns, in place
    of what ``[data]`` says.
    """
    files = [file for name in names for file in _files_of(name)]
    section = data.array_names(run_file.section("data"), files[0])
    if x:
        section["x"] = [*x] if len(x) > 1 else x[0]
    if not targets:  # the files need not have them
        section["y"] = objects.NONE
    dataset = FileDataset(**objects.keywords_of({"files": files, **section}, data.FILES))
    unknown = [name for name in dataset.classes if name not in section.get("classes", {})]
    if unknown and isinstance(dataset.reader, readers.TableReader):
        raise ValueError(
            f"{files[0]} holds strings in {unknown[0]!r}, and the run does not say which classes "
            f"these were in training: --set \"data.classes={{{unknown[0]}=['a', 'b']}}\" names "
            "them in the order of their codes"
        )
    arrays = list(dataset.layout or ())
    if len(arrays) == 1 and not x and not (targets and dataset.y):
        dataset.x = arrays[0]
    try:
        dataset.training_keys(targets=targets)
    except ValueError as error:
        hint = (
            "--set data.x=NAME where [data] has files, --set data.x.key=NAME where it has x, or --x"
        )
        raise ValueError(f"{error}. For a run: {hint}; else rename the array") from error
    return dataset


def identifiers_of(samples: FileDataset, name: str | None) -> list[Any]:
    """Return the values of a column of tables, or of an array; without a name, files and rows.

    Raises ``BadFileError`` if a file lacks it.
    """
    if name is None:
        return [row for block in samples.blocks.values() for row in block.row_names()]
    reader = samples.reader
    identifiers = []
    rows_of_files = {block.path: block.file_rows for block in samples.blocks.values()}
    for path, rows in rows_of_files.items():
        with reading.bad_file_errors(path):
            if isinstance(reader, readers.TableReader):
                with reader.open(path, [name]) as table:
                    select_keys([name], table.schema.names)
                    identifiers += table.rows(0, rows, [name])[name].to_pylist()
            else:
                arrays, *_ = reader.read(path, 0, rows, [name])
                identifiers += np.asarray(arrays[name]).tolist()
    return identifiers
