"""What estimators accept as X and y: scikit-learn's checks of arrays, and their like of blocks and files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data

from compss_train.data import BlockedTensor, FileDataset
from compss_train.data.block import Block, load_block
from compss_train.data.row_ranges import RowRange
from compss_train.exceptions import BadFileError
from compss_train.integrations.sklearn.constructor import EstimatorParameters


def checked_samples(estimator: EstimatorParameters, X: Any) -> Any:
    """Return samples to predict on."""
    x = as_samples(X)
    if not in_parts(x):
        return _arrays(estimator, x, reset=False)
    _check_features(estimator, x, reset=False)
    return x


def checked_pair(
    estimator: EstimatorParameters, X: Any, y: Any, *, reset: bool, **of_targets: bool
) -> tuple[Any, Any]:
    """Return samples and targets to train on; ``reset`` learns how many features there are.

    ``of_targets`` are options of ``validate_data``.
    """
    x, y = as_samples(X), as_samples(y)
    if not (in_parts(x) or in_parts(y)):
        arrays: tuple[Any, Any] = _arrays(estimator, x, y, reset=reset, **of_targets)
        return arrays
    _check_kinds(x, y)
    _check_features(estimator, x, reset=reset)
    return x, y


def checked_weights(sample_weight: Any) -> Any:
    """Return weights of samples as the trainer takes them, which checks the rest."""
    weights = as_samples(sample_weight)
    if weights is None or in_parts(weights):
        return weights
    array = np.asarray(weights)
    if not array.any():
        raise ValueError("sample_weight is zero for every sample, so that there is nothing to learn from")
    return array


def _arrays(estimator: EstimatorParameters, *arrays: Any, reset: bool, **of_targets: bool) -> Any:
    dtype = None if estimator.dtype is None else np.dtype(estimator.dtype)
    own_net = estimator.net is not None
    return validate_data(estimator, *arrays, reset=reset, dtype=dtype, allow_nd=own_net, **of_targets)


def _check_kinds(x: object, y: object) -> None:
    """Raise ``TypeError`` unless both are in blocks, or x is files, which hold y too."""
    if isinstance(x, FileDataset):
        if y is not None:
            raise TypeError(f"X is a FileDataset, whose files hold y, too; leave y={type(y).__name__} out")
    elif not (isinstance(x, BlockedTensor) and isinstance(y, BlockedTensor)):
        raise TypeError(
            f"X is a {type(x).__name__} and y a {type(y).__name__}; give both as arrays, or both as BlockedTensor "
            "with the same grid"
        )


def _check_features(estimator: EstimatorParameters, x: Any, *, reset: bool) -> None:
    """Learn or check the number of features of samples in blocks or files."""
    shape = tuple(first_sample(x).shape[1:])
    if not shape:
        raise ValueError("X holds a number a sample; give it rows, of one number if need be")
    if reset:
        estimator.n_features_in_ = shape[0]
        if hasattr(estimator, "feature_names_in_"):
            del estimator.feature_names_in_
    elif shape[0] != estimator.n_features_in_:
        raise ValueError(
            f"X has {shape[0]} features, but {type(estimator).__name__} is expecting {estimator.n_features_in_} "
            "features as input"
        )


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
    block: Block = load_block(next(x.blocks())) if isinstance(x, BlockedTensor) else x
    return block[:1]


def first_in_files(files: FileDataset) -> tuple[Block, ...]:
    """Return the first sample of files and its target, where they hold targets."""
    keys = files.training_keys()
    arrays = files.part([0], keys).read(RowRange(0, 0, 1))
    return tuple(arrays[key] for key in keys)


def as_array(y: Any) -> Any:
    """Return a blocked tensor as an array; anything else as it is."""
    y = as_samples(y)
    return np.asarray(y.collect()) if isinstance(y, BlockedTensor) else y


def mapped(function: Callable[[NDArray[Any]], NDArray[Any]], y: BlockedTensor) -> BlockedTensor:
    """Return a blocked tensor of what the function makes of each block, brought here for it."""
    return BlockedTensor([[function(np.asarray(load_block(block))) for block in row] for row in y.tensors])


def values_in_parts(x: BlockedTensor | FileDataset, y: BlockedTensor | None) -> NDArray[Any]:
    """Return the different targets in the blocks of y, or in the files, which are all read for it."""
    parts = _targets_of_files(x) if isinstance(x, FileDataset) else map(load_block, (y or x).blocks())
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
            yield files.part([number], (key,)).read(RowRange(number, 0, size))[key]
        except BadFileError:
            if files.on_bad_file == "raise":
                raise
