"""Files of samples that a command line names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from compss_train.data import FileDataset
from compss_train.data.block import Block
from compss_train.data.files import file_names
from compss_train.data.remote import loaded
from compss_train.given import as_blocked
from compss_train.runs.data import Samples, load_array
from compss_train.runs.file import RunFile
from compss_train.runs.problems import WrongValueError


def absolute(names: Sequence[str]) -> list[str]:
    """Return names and patterns of files that are valid in any folder."""
    return [name if "://" in name else os.path.abspath(name) for name in names]


def read_pair(names: Sequence[str], run_file: RunFile) -> Samples:
    """Return x and y: two ``.npy`` files, or files that hold both under the names that ``[data]`` has for them."""
    if all(name.endswith(".npy") for name in names) and len(names) > 1:
        if len(names) > 2:
            raise WrongValueError(f"{len(names)} .npy files: give two, samples and targets")
        return Samples(load_array(names[0], "x"), load_array(names[1], "y"))
    return Samples(_dataset(names, run_file))


def read_samples(names: Sequence[str], run_file: RunFile) -> FileDataset:
    """Return files that hold x, and perhaps more."""
    return _dataset(names, run_file)


def _dataset(names: Sequence[str], run_file: RunFile) -> FileDataset:
    data = run_file.section("data")
    keys = {role: data[role] for role in ("x", "y") if "files" in data and role in data}
    return FileDataset([file for name in names for file in file_names(name)], **keys)


def first_samples(x: Any) -> Block:
    """Return two samples of what is trained on, or the only one."""
    if isinstance(x, FileDataset):
        key = x.training_keys(targets=False)[0]
        arrays, _ = x.reader.read(x.files[0], 0, 2, (key,))
        return arrays[key]
    return loaded(next(as_blocked(x, 1).blocks()))[:2]
