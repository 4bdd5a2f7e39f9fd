"""The sections ``[data]`` and ``[validation]``: what is trained and evaluated on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from compss_train.data import BlockedTensor, FileDataset
from compss_train.data.files import read_whole
from compss_train.data.readers import as_reader
from compss_train.runs import objects
from compss_train.runs.options import options_of, read_options
from compss_train.runs.problems import Problems, WrongValueError, unknown

FORMS = 'give files = "train/*.npz", or x = "x.npy" and y = "y.npy", or import = "module:function"'

Pair = tuple[Any, Any]
"""What a fit takes as x and y; files hold both, so that y is ``None``."""


def make_data(where: str, table: Mapping[str, Any], problems: Problems) -> Pair | None:
    """Return what a section names, or ``None`` after noting what is wrong with it."""
    before = len(problems)
    pair = None
    with problems.noting(where):
        if "files" in table:
            options = read_options(where, table, options_of(FileDataset), problems)
            pair = (FileDataset(**options), None) if len(problems) == before else None
        elif objects.CALLED in table:
            own = {key: value for key, value in table.items() if key != "blocks"}
            pair = _in_blocks(_as_pair(objects.make(own), table[objects.CALLED]), table.get("blocks"))
        elif "x" in table:
            pair = _arrays(where, table, problems)
        else:
            raise WrongValueError(f"it names no samples; {FORMS}")
    return pair if len(problems) == before else None


def _as_pair(made: Any, name: str) -> Pair:
    """Return x and y of what a function has returned."""
    if isinstance(made, tuple | list):
        if len(made) != 2:
            raise WrongValueError(f"{name} returned {len(made)} values; it should be x and y, or x alone")
        return made[0], made[1]
    return made, None


def _arrays(where: str, table: Mapping[str, Any], problems: Problems) -> Pair | None:
    keys = ("x", "y", "blocks")
    for key in table:
        if key not in keys:
            problems.add(f"{where} {key}", unknown(key, keys))
    loaded: dict[str, Any] = {"x": None, "y": None}
    for role in loaded:
        if role in table:
            with problems.noting(f"{where} {role}"):
                loaded[role] = load_array(table[role], role)
    if loaded["x"] is None or (loaded["y"] is None and "y" in table):
        return None
    with problems.noting(f"{where} blocks"):
        return _in_blocks((loaded["x"], loaded["y"]), table.get("blocks"))
    return None


def load_array(value: Any, role: str) -> Any:
    """Return the array that ``value`` names: a file, ``{ file = ..., key = ... }``, or an object.

    A ``.npy`` file is mapped. Of files with several arrays it is the one called ``key``, by default ``role``.
    """
    if isinstance(value, dict) and "file" in value and objects.CALLED not in value:
        if wrong := [key for key in value if key not in ("file", "key")]:
            raise WrongValueError(unknown(wrong[0], ("file", "key")))
        return _read(value["file"], value.get("key", role))
    if isinstance(value, str) and not value.startswith(objects.PREFIX):
        return _read(value, role)
    return objects.resolve(value)


def _read(name: Any, key: str) -> Any:
    if not isinstance(name, str):
        raise WrongValueError(f"{name!r} names no file; give a text")
    if name.endswith(".npy"):
        return np.load(name, mmap_mode="r", allow_pickle=False)
    names = list(as_reader(None, [name]).describe(name).layout or ())
    return read_whole([name], names[0] if len(names) == 1 else key)[0]


def _in_blocks(pair: Pair, blocks: Any) -> Pair:
    """Return x and y cut into a grid of blocks, where the file gives one."""
    if blocks is None:
        return pair
    grid = (blocks, 1) if isinstance(blocks, int) else blocks
    if any(isinstance(part, FileDataset | BlockedTensor) for part in pair):
        raise WrongValueError("these samples are in blocks or files already; leave blocks out")
    x, y = (None if part is None else BlockedTensor.from_array(part, grid) for part in pair)
    return x, y
