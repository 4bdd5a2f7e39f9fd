"""Validation of X, y and sample weights: arrays by scikit-learn, blocks and files likewise."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from compss_train.data import BlockedTensor, FileDataset
from compss_train.data.block import Block, load_block
from compss_train.data.order import RowRange
from compss_train.exceptions import BadFileError


def validate(estimator: BaseEstimator, X: Any, *y: Any, reset: bool, **target_checks: bool) -> Any:
    """Return validated samples for prediction, or with ``y`` samples and targets for training.

    ``reset`` sets ``n_features_in_``; ``target_checks`` are options of ``validate_data``.
    """
    x, *targets = (convert_dislib(each) for each in (X, *y))
    if not any(map(is_partitioned, (x, *targets))):
        dtype = None if estimator.dtype is None else np.dtype(estimator.dtype)
        options = {"reset": reset, "dtype": dtype, "allow_nd": estimator.net is not None, **target_checks}
        return validate_data(estimator, x, *targets, **options)
    if targets and isinstance(x, FileDataset):
        if targets[0] is not None:
            raise TypeError(f"X is a FileDataset, whose files include y; omit y={type(targets[0]).__name__}")
    elif not all(isinstance(each, BlockedTensor) for each in (x, *targets)) and targets:
        raise TypeError(
            f"X is a {type(x).__name__} and y a {type(targets[0]).__name__}; give both as arrays, or both as "
            "BlockedTensor with the same grid"
        )
    _check_features(estimator, x, reset=reset)
    return (x, targets[0]) if targets else x


def validate_sample_weight(sample_weight: Any) -> Any:
    """Return weights of samples for the trainer, which validates them further."""
    weights = convert_dislib(sample_weight)
    if weights is None or is_partitioned(weights):
        return weights
    array = np.asarray(weights)
    if not array.any():
        raise ValueError("sample_weight is zero for every sample, so there is nothing to train on")
    return array


def _check_features(estimator: BaseEstimator, x: Any, *, reset: bool) -> None:
    """Set or check the number of features of samples in blocks or files."""
    shape = tuple(first_sample(x).shape[1:])
    if not shape:
        raise ValueError("X has one number per sample; give it the shape (samples, features)")
    if reset:
        estimator.n_features_in_ = shape[0]
        if hasattr(estimator, "feature_names_in_"):
            del estimator.feature_names_in_
    elif shape[0] != estimator.n_features_in_:
        raise ValueError(
            f"X has {shape[0]} features, but {type(estimator).__name__} is expecting {estimator.n_features_in_} "
            "features as input"
        )


def convert_dislib(value: Any) -> Any:
    """Return a dislib tensor as a ``BlockedTensor``, any other value unchanged."""
    is_dislib = hasattr(value, "tensors") and not isinstance(value, BlockedTensor)
    return BlockedTensor.from_dislib(value) if is_dislib else value


def is_partitioned(value: object) -> bool:
    """Return whether samples are in blocks or files, not in an array."""
    return isinstance(value, BlockedTensor | FileDataset)


def first_sample(x: Any) -> Block:
    """Return the first sample, shape (1, ...)."""
    if isinstance(x, FileDataset):
        return first_row_of_files(x)[0]
    block: Block = load_block(next(x.blocks())) if isinstance(x, BlockedTensor) else x
    return block[:1]


def first_row_of_files(files: FileDataset) -> tuple[Block, ...]:
    """Return the first sample of files and its target, if the files have targets."""
    keys = files.training_keys()
    arrays = files.part([0], keys).read(RowRange(0, 0, 1))
    return tuple(arrays[key] for key in keys)


def as_array(y: Any) -> Any:
    """Return a blocked tensor as an array, any other value unchanged."""
    y = convert_dislib(y)
    return np.asarray(y.collect()) if isinstance(y, BlockedTensor) else y


def map_blocks(function: Callable[[NDArray[Any]], NDArray[Any]], y: BlockedTensor) -> BlockedTensor:
    """Return a blocked tensor with ``function`` applied to each block, in this process."""
    return BlockedTensor([[function(np.asarray(load_block(block))) for block in row] for row in y.tensors])


def unique_targets(x: BlockedTensor | FileDataset, y: BlockedTensor | None) -> NDArray[Any]:
    """Return the unique targets in the blocks of y, or in the files, which are all read."""
    parts = _file_targets(x) if isinstance(x, FileDataset) else map(load_block, (y or x).blocks())
    return np.unique(np.concatenate([np.unique(np.asarray(part)) for part in parts]))


def _file_targets(files: FileDataset) -> Iterator[Block]:
    keys = files.training_keys()
    if len(keys) == 1:
        raise ValueError(f"the files have no targets beside {keys[0]!r}; give FileDataset(..., y=...)")
    key = keys[-1]
    for number, size in enumerate(files.sizes):
        try:
            yield files.part([number], (key,)).read(RowRange(number, 0, size))[key]
        except BadFileError:
            if files.on_bad_file == "raise":
                raise
