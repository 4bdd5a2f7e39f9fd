"""Weights of samples: one finite number of at least 0 for each."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from compss_train.data.block import Block, RemoteBlock, as_block, as_tensor
from compss_train.data.blocked import BlockedTensor
from compss_train.data.layout import check_weight_shape
from compss_train.data.shuffle import check_paired


def as_weights(value: object, x: BlockedTensor) -> BlockedTensor:
    """Return the weights of samples x: blocks that are cut like them, or an array, which is.

    Blocks that are elsewhere or on file are checked where they are used. Raises ``ValueError`` for what cannot be
    the weights of these samples.
    """
    weights = _blocked(value, x)
    check_paired(x, weights, "sample_weight")
    check_weight_shape("sample_weight", weights.sample_shape)
    for number, block in enumerate(weights.blocks()):
        if not isinstance(block, RemoteBlock | np.memmap):
            _check_values(number, block)
    return weights


def _blocked(value: object, x: BlockedTensor) -> BlockedTensor:
    if isinstance(value, BlockedTensor):
        return value
    if hasattr(value, "tensors"):
        return BlockedTensor.from_dislib(value)
    whole = as_block(value)
    if len(whole) != x.number_samples:
        raise ValueError(
            f"sample_weight has {len(whole)} weights for {x.number_samples} samples; give one for each"
        )
    blocks = iter(whole[start:stop] for start, stop in pairwise(np.cumsum([0, *x.sizes]).tolist()))
    return BlockedTensor([[next(blocks) for _ in row] for row in x.tensors])


def _check_values(number: int, block: Block) -> None:
    weights = as_tensor(block)
    if weights.is_complex() or not bool(((weights >= 0) & weights.isfinite()).all()):
        raise ValueError(
            f"sample_weight holds negative, NaN, infinite or complex numbers in block {number}; weights are finite "
            "and at least 0"
        )
