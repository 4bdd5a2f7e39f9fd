"""Shuffle blocked tensors as a whole."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train.data.block import Block, own_copy
from compss_train.data.blocked import BlockedTensor
from compss_train.data.order import sample_order


@overload
def shuffle(x: BlockedTensor, y: None = None, seed: int = 0) -> BlockedTensor: ...
@overload
def shuffle(x: BlockedTensor, y: BlockedTensor, seed: int = 0) -> tuple[BlockedTensor, BlockedTensor]: ...
def shuffle(
    x: BlockedTensor, y: BlockedTensor | None = None, seed: int = 0
) -> BlockedTensor | tuple[BlockedTensor, BlockedTensor]:
    """Return new blocked tensors whose samples are a uniform permutation of all samples of ``x`` (and ``y``).

    Grid, block sizes and dtypes stay; ``x`` and ``y`` stay paired. Needs memory for one more copy of the data.

    Raises ``ValueError`` where x and y have different grids or block sizes.
    """
    order = sample_order(seed, 0, x.number_samples)
    if y is None:
        return _reordered(x, order)
    check_paired(x, y)
    return _reordered(x, order), _reordered(y, order)


def _reordered(tensor: BlockedTensor, order: NDArray[Any]) -> BlockedTensor:
    whole = tensor.collect()
    bounds = np.cumsum([0, *tensor.sizes]).tolist()
    rows = iter([_take(whole, order[start:stop]) for start, stop in pairwise(bounds)])
    return BlockedTensor([[next(rows) for _ in row] for row in tensor.tensors])


def _take(whole: Block, rows: NDArray[Any]) -> Block:
    if isinstance(whole, torch.Tensor):
        return whole[torch.from_numpy(rows).long()]
    return own_copy(whole[rows])


def check_paired(x: BlockedTensor, y: BlockedTensor, name: str = "y") -> None:
    """Raise ``ValueError`` unless x and y, or what is called so, have the same grid and block sizes."""
    if x.shape != y.shape:
        raise ValueError(f"x has a grid of {x.shape} blocks and {name} one of {y.shape}; cut both alike")
    for number, (ours, theirs) in enumerate(zip(x.sizes, y.sizes, strict=True)):
        if ours != theirs:
            raise ValueError(
                f"block {number} has {ours} samples in x and {theirs} in {name} "
                f"({x.number_samples} and {y.number_samples} in all); cut both alike"
            )
