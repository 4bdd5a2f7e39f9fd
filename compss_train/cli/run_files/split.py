"""Keeping a part of the samples for validation."""

from __future__ import annotations

import copy
from inspect import Parameter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compss_train.cli.run_files.data import Samples, in_grid
from compss_train.cli.run_files.options import Option
from compss_train.cli.run_files.problems import WrongValueError
from compss_train.data import BlockedTensor, FileDataset
from compss_train.data.block import as_block

FRACTION = "fraction"
"""The key of ``[validation]`` that keeps a part of what is in ``[data]``."""


def fraction_options() -> dict[str, Option]:
    """Return the keys of a ``[validation]`` that keeps such a part."""
    return {FRACTION: Option(FRACTION, float, Parameter.empty)}


def split(samples: Samples, fraction: Any, seed: int) -> tuple[Samples, Samples]:
    """Return what is left to train on, and the fraction that is kept: samples at random, or whole files.

    The same seed keeps the same samples. Raises ``WrongValueError`` for a fraction that leaves one of them empty.
    """
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction < 1:
        raise WrongValueError(f"fraction = {fraction!r}: give a number between 0 and 1")
    x = samples.x
    if isinstance(x, FileDataset):
        kept, left = _chosen(len(x.files), fraction, seed, "files")
        return Samples(_files(x, left)), Samples(_files(x, kept))
    whole = Samples(*(None if part is None else _whole(part) for part in samples))
    _check_lengths(whole)
    kept, left = _chosen(len(whole.x), fraction, seed, "samples")
    train = _rows(whole, left)
    return in_grid(train, x.shape) if isinstance(x, BlockedTensor) else train, _rows(whole, kept)


def _chosen(number: int, fraction: float, seed: int, unit: str) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    count = round(number * fraction)
    if not 0 < count < number:
        raise WrongValueError(f"fraction = {fraction} of {number} {unit} keeps {count}; give another fraction")
    order = np.random.default_rng(seed).permutation(number)
    return np.sort(order[:count]), np.sort(order[count:])


def _whole(part: Any) -> Any:
    return part.collect() if isinstance(part, BlockedTensor) else as_block(part)


def _check_lengths(samples: Samples) -> None:
    lengths = {name: len(part) for name, part in samples._asdict().items() if part is not None}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise WrongValueError(f"these have different lengths: {told}")


def _rows(samples: Samples, rows: NDArray[np.intp]) -> Samples:
    return Samples(*(None if part is None else part[rows] for part in samples))


def _files(dataset: FileDataset, numbers: NDArray[np.intp]) -> FileDataset:
    """Return a data set of some of the files, read in the same way."""
    chosen = copy.copy(dataset)
    chosen.files = [dataset.files[number] for number in numbers]
    chosen.files_len = {name: dataset.files_len[name] for name in chosen.files}
    return chosen
