"""The apps' data: Fashion-MNIST from idx files, and the digits that come with scikit-learn."""

from __future__ import annotations

import gzip
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FASHION_MNIST_FOLDER = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist puts the files."""

_UNSIGNED_BYTES = 0x08
"""The idx format's code for elements of type uint8."""

Array = NDArray[Any]


class DataError(Exception):
    """The data are not there or not readable; the message says how to get them."""


@dataclass(frozen=True)
class Dataset:
    """Samples and their classes, to train on and to test with."""

    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array


def fashion_mnist(folder: Path) -> Dataset:
    """Read Fashion-MNIST's (or MNIST's) four ``.gz`` files; images are uint8 of (N, 28, 28).

    Raises ``DataError`` where the folder or a file is missing, or is not what it should be.
    """
    if not folder.is_dir():
        raise DataError(f"no folder {folder}; {_how_to_get_it()}")
    return Dataset(*_images_and_labels(folder, "train"), *_images_and_labels(folder, "t10k"))


def _images_and_labels(folder: Path, part: str) -> tuple[Array, Array]:
    images = read_idx(folder / f"{part}-images-idx3-ubyte.gz", dimensions=3)
    labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz", dimensions=1)
    if images.shape[1:] != (28, 28):
        raise DataError(
            f"{folder}: the {part} images are {images.shape[1:]} pixels, expected (28, 28)"
        )
    if len(images) != len(labels):
        raise DataError(
            f"{folder}: {len(images)} {part} images, but {len(labels)} labels; {_how_to_get_it()}"
        )
    if len(labels) == 0 or labels.max() > 9:
        raise DataError(
            f"{folder}: the {part} labels must be some, each from 0 to 9; {_how_to_get_it()}"
        )
    return images, labels


def read_idx(path: Path, dimensions: int) -> Array:
    """Read a gzipped idx file of bytes.

    It has a magic number, the sizes of its dimensions, then the elements. Raises ``DataError`` for
    a file that is missing, truncated or of another format.
    """
    content = _unzip(path)
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes([0, 0, _UNSIGNED_BYTES, dimensions]):
        raise DataError(
            f"{path} is not an idx file of bytes in {dimensions} dimensions; {_how_to_get_it()}"
        )
    shape = tuple(np.frombuffer(content, ">u4", dimensions, offset=4).tolist())
    if len(content) != header + math.prod(shape):
        raise DataError(
            f"{path} has {len(content) - header} bytes of data, its header announces "
            f"{math.prod(shape)}; {_how_to_get_it()}"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _unzip(path: Path) -> bytes:
    try:
        with gzip.open(path) as file:
            return file.read()
    except FileNotFoundError:
        raise DataError(f"no file {path}; {_how_to_get_it()}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path} ({error}); {_how_to_get_it()}") from error


def _how_to_get_it() -> str:
    return (
        "get Fashion-MNIST with `apt install dataset-fashion-mnist`, or give its folder with --data"
    )


def digits(test_share: float = 0.2, seed: int = 0) -> Dataset:
    """Return scikit-learn's 1,797 digits as float32 of (N, 64) from 0 to 1, split at random.

    Raises ``DataError`` where scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError(
            "scikit-learn has the digits and is not installed; `pip install scikit-learn`"
        ) from error
    samples, classes = load_digits(return_X_y=True)
    samples = (samples / 16).astype(np.float32)
    order = np.random.default_rng(seed).permutation(len(samples))
    test, train = np.split(order, [round(test_share * len(order))])
    return Dataset(samples[train], classes[train], samples[test], classes[test])
