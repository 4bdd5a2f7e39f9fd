"""Samples that are no arrays: blocked tensors and files, as estimators take them too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compss_train.data import BlockedTensor, FileDataset
from compss_train.data.block import Block
from compss_train.data.remote import loaded
from compss_train.data.stretches import Stretch
from compss_train.exceptions import BadFileError


def as_samples(value: Any) -> Any:
    """Return blocked tensors, dislib's too, as such; anything else as it is."""
    return BlockedTensor.from_dislib(value) if _like_dislib(value) else value


def _like_dislib(value: object) -> bool:
    return hasattr(value, "tensors") and not isinstance(value, BlockedTensor)


def in_parts(value: object) -> bool:
    """Tell whether samples come in blocks or files, not in an array."""
    return isinstance(value, BlockedTensor | FileDataset)


def first_sample(x: Any) -> Block:
    """Return the first sample, shape (1, ...)."""
    if isinstance(x, FileDataset):
        return first_in_files(x)[0]
    block: Block = loaded(next(x.blocks())) if isinstance(x, BlockedTensor) else x
    return block[:1]


def first_in_files(files: FileDataset) -> tuple[Block, ...]:
    """Return the first sample of files and its target, where they hold targets."""
    keys = files.training_keys()
    arrays = files.part([0], keys).read(Stretch(0, 0, 1))
    return tuple(arrays[key] for key in keys)


def as_array(y: Any) -> Any:
    """Return a blocked tensor as an array; anything else as it is."""
    y = as_samples(y)
    return np.asarray(y.collect()) if isinstance(y, BlockedTensor) else y


def mapped(function: Callable[[NDArray[Any]], NDArray[Any]], y: BlockedTensor) -> BlockedTensor:
    """Return a blocked tensor of what the function makes of each block, brought here for it."""
    return BlockedTensor([[function(np.asarray(loaded(block))) for block in row] for row in y.tensors])


def values_in_parts(x: BlockedTensor | FileDataset, y: BlockedTensor | None) -> NDArray[Any]:
    """Return the different targets in the blocks of y, or in the files, which are all read for it."""
    parts = _targets_of_files(x) if isinstance(x, FileDataset) else map(loaded, (y or x).blocks())
    return np.unique(np.concatenate([np.unique(np.asarray(part)) for part in parts]))


def _targets_of_files(files: FileDataset) -> Iterator[Block]:
    keys = files.training_keys()
    if len(keys) == 1:
        raise ValueError(
            f"the files hold no targets beside {keys[0]!r}; FileDataset(..., y=...) says which they are"
        )
    key = keys[-1]
    for number, size in enumerate(files.sizes):
        try:
            yield files.part([number], (key,)).read(Stretch(number, 0, size))[key]
        except BadFileError:
            if files.on_bad_file == "raise":
                raise
