"""The sections ``[data]`` and ``[validation]``: what is trained and evaluated on."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter
from typing import Any, NamedTuple

import numpy as np

from compss_train.cli.run_files import objects
from compss_train.cli.run_files.options import NONE, Option, options_of, read_options
from compss_train.cli.run_files.problems import Problems, WrongValueError, unknown
from compss_train.data import BlockedTensor, FileDataset
from compss_train.data.files import read_whole
from compss_train.data.readers import as_reader

FORMS = 'give files = "train/*.npz", or x = "x.npy" and y = "y.npy", or import = "module:function"'


class Samples(NamedTuple):
    """What is trained or evaluated on."""

    x: Any
    """Arrays, blocked tensors, or files, which hold the others, too."""
    y: Any = None
    weight: Any = None
    """Of each sample in the loss that is trained on."""


def array_options() -> dict[str, Option]:
    """Return the keys of a section that names arrays: a file, a file and the name in it, or an object each."""
    others = {role: Option(role, str | dict | None, None) for role in ("y", "weight")}
    return {"x": Option("x", str | dict, Parameter.empty), **others, **block_options()}


def block_options() -> dict[str, Option]:
    """Return the key that says how x, y and weights are cut, which those in files are not."""
    return {"blocks": Option("blocks", int | list | None, None)}


def make_data(where: str, table: Mapping[str, Any], problems: Problems) -> Samples | None:
    """Return what a section names, or ``None`` after noting what is wrong with it."""
    before = len(problems)
    samples = None
    with problems.noting(where):
        if "files" in table:
            options = read_options(where, table, options_of(FileDataset), problems)
            samples = Samples(FileDataset(**options)) if len(problems) == before else None
        elif objects.CALLED in table:
            own = {key: value for key, value in table.items() if key != "blocks"}
            samples = _in_blocks(_as_samples(objects.make(own), table[objects.CALLED]), table.get("blocks"))
        elif "x" in table:
            samples = _arrays(where, table, problems)
        else:
            raise WrongValueError(f"it names no samples; {FORMS}")
    return samples if len(problems) == before else None


def _as_samples(made: Any, name: str) -> Samples:
    """Return x, y and weights of what a function has returned."""
    if not isinstance(made, tuple | list):
        return Samples(made)
    if len(made) not in (2, 3):
        raise WrongValueError(f"{name} returned {len(made)} values; give x and y, x alone, or x, y and weights")
    return Samples(*made)


def _arrays(where: str, table: Mapping[str, Any], problems: Problems) -> Samples | None:
    before = len(problems)
    keys = array_options()
    for key in table:
        if key not in keys:
            problems.add(f"{where} {key}", unknown(key, keys))
    loaded = {}
    for role in Samples._fields:
        if role in table and (role == "x" or table[role] != NONE):
            with problems.noting(f"{where} {role}"):
                loaded[role] = load_array(table[role], role)
    if len(problems) > before:
        return None
    with problems.noting(f"{where} blocks"):
        return _in_blocks(Samples(**loaded), table.get("blocks"))
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


def _in_blocks(samples: Samples, blocks: Any) -> Samples:
    """Return all cut into a grid of blocks, where the file gives one."""
    if blocks in (None, NONE):
        return samples
    if any(isinstance(part, FileDataset | BlockedTensor) for part in samples):
        raise WrongValueError("these samples are in blocks or files already; leave blocks out")
    return in_grid(samples, (blocks, 1) if isinstance(blocks, int) else blocks)


def in_grid(samples: Samples, grid: tuple[int, int]) -> Samples:
    """Return arrays cut into a grid of blocks."""
    return Samples(*(None if part is None else BlockedTensor.from_array(part, grid) for part in samples))
