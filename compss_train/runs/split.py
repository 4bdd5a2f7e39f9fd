"""Keeping a part of the samples for validation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compss_train.data import BlockedTensor, FileDataset
from compss_train.data.block import as_block
from compss_train.runs.data import Pair
from compss_train.runs.problems import WrongValueError


def split(pair: Pair, fraction: Any, seed: int) -> tuple[Pair, Pair]:
    """Return what is left to train on, and the fraction that is kept: samples at random, or whole files.

    The same seed keeps the same samples. Raises ``WrongValueError`` for a fraction that leaves one of them empty.
    """
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction < 1:
        raise WrongValueError(f"fraction = {fraction!r}: give a number between 0 and 1")
    x = pair[0]
    if isinstance(x, FileDataset):
        kept, left = _chosen(len(x.files), fraction, seed, "files")
        return (_files(x, left), None), (_files(x, kept), None)
    parts: list[Any] = [None if part is None else _whole(part) for part in pair]
    if len({len(part) for part in parts if part is not None}) > 1:
        raise WrongValueError(f"x has {len(parts[0])} samples, y {len(parts[1])}; they go in pairs")
    kept, left = _chosen(len(parts[0]), fraction, seed, "samples")
    grid = x.shape if isinstance(x, BlockedTensor) else None
    return _rows(parts, left, grid), _rows(parts, kept, None)


def _chosen(number: int, fraction: float, seed: int, unit: str) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    count = round(number * fraction)
    if not 0 < count < number:
        raise WrongValueError(f"fraction = {fraction} of {number} {unit} keeps {count}; give another fraction")
    order = np.random.default_rng(seed).permutation(number)
    return np.sort(order[:count]), np.sort(order[count:])


def _whole(part: Any) -> Any:
    return part.collect() if isinstance(part, BlockedTensor) else as_block(part)


def _rows(parts: list[Any], rows: NDArray[np.intp], grid: tuple[int, int] | None) -> Pair:
    x, y = (None if part is None else part[rows] for part in parts)
    if grid is None:
        return x, y
    return tuple(None if part is None else BlockedTensor.from_array(part, grid) for part in (x, y))  # type: ignore[return-value]


def _files(dataset: FileDataset, numbers: NDArray[np.intp]) -> FileDataset:
    names = [dataset.files[number] for number in numbers]
    return FileDataset(
        names,
        dataset.reader,
        {name: dataset.files_len[name] for name in names},
        keys=dataset.keys,
        x=dataset.x,
        y=dataset.y,
        on_bad_file=dataset.on_bad_file,
    )
