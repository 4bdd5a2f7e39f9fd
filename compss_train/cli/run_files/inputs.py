"""Files of samples that a command line names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from compss_train.cli.run_files.data import Samples, load_array
from compss_train.cli.run_files.file import RunFile
from compss_train.cli.run_files.options import NONE
from compss_train.cli.run_files.problems import WrongValueError
from compss_train.data import FileDataset
from compss_train.data.block import Block, loaded
from compss_train.data.files import file_names
from compss_train.data.layout import listed
from compss_train.training.data_source import as_blocked


def absolute(names: Sequence[str]) -> list[str]:
    """Return names and patterns of files that are valid in any folder."""
    return [name if "://" in name else os.path.abspath(name) for name in names]


def read_pair(names: Sequence[str], run_file: RunFile) -> Samples:
    """Return x and y: two ``.npy`` files, or files that hold both under the names that ``[data]`` has for them.

    Raises ``WrongValueError`` where y is missing, unless ``[data]`` has none: samples are their own targets then.
    """
    if not all(name.endswith(".npy") for name in names):
        return Samples(_dataset(names, run_file, ("x", "y")))
    if len(names) > 2:
        raise WrongValueError(f"{len(names)} .npy files: give two, samples and targets")
    if len(names) == 2:
        return Samples(load_array(names[0], "x"), load_array(names[1], "y"))
    if _array_names(run_file.section("data")).get("y", "y") is not None:
        raise WrongValueError(
            f"{names[0]} is x alone: name a second .npy file, y; the same one where samples are their own targets"
        )
    return Samples(_dataset(names, run_file, ("x",)))


def read_samples(names: Sequence[str], run_file: RunFile) -> FileDataset:
    """Return files that hold x, and perhaps more."""
    return _dataset(names, run_file, ("x",))


def _dataset(names: Sequence[str], run_file: RunFile, roles: Sequence[str]) -> FileDataset:
    """Return files that hold what has these roles; a single array is x where that is all it takes."""
    data = run_file.section("data")
    named = _array_names(data)
    dataset = FileDataset([file for name in names for file in file_names(name)], **named)
    held = list(dataset.layout or ())
    if len(held) == 1 and ("y" not in roles or dataset.y is None):
        dataset.x = held[0]
    elif len(held) > 1 or named or "y" in data:
        for role in roles:
            _check_held(dataset, role, held, data)
    return dataset


def _array_names(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``[data]`` says that x and y are called in files, ``None`` for a y that there is not."""
    if "files" in data:
        return {role: None if data[role] == NONE else data[role] for role in ("x", "y") if role in data}
    if "x" not in data:
        return {}
    keys = {role: data[role]["key"] for role in ("x", "y") if _has_key(data, role)}
    return keys if data.get("y", NONE) != NONE else {**keys, "y": None}


def _has_key(data: Mapping[str, Any], role: str) -> bool:
    table = data.get(role)
    return isinstance(table, dict) and "file" in table and "key" in table


def _check_held(dataset: FileDataset, role: str, held: Sequence[str], data: Mapping[str, Any]) -> None:
    """Raise ``WrongValueError`` where the files do not hold what has this role."""
    name = getattr(dataset, role)
    if name is None or name in held:
        return
    hint = f"files are read by the names x and y, so call the one that is {role} so"
    if "files" in data or _has_key(data, role):
        hint = f"--set data.{role}{'' if 'files' in data else '.key'}=NAME names another one"
    raise WrongValueError(f"{dataset.files[0]} has no array {name!r} for {role}, it has {listed(held)}; {hint}")


def first_samples(x: Any) -> Block:
    """Return two samples of what is trained on, or the only one."""
    if isinstance(x, FileDataset):
        key = x.training_keys(targets=False)[0]
        arrays, _ = x.reader.read(x.files[0], 0, 2, (key,))
        return arrays[key]
    return loaded(next(as_blocked(x, 1).blocks()))[:2]
