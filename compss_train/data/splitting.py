"""Which samples are held out for validation: ranges of rows, or samples of each class alike."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compss_train.data.reading import FileBlock


def held_out(number: int, fraction: float) -> int:
    """Return how many of a number of samples a fraction is; raise ``ValueError`` for 0 or all."""
    count = round(number * fraction)
    if not 0 < count < number:
        raise ValueError(
            f"fraction={fraction} of {number} samples is {count}; give another fraction"
        )
    return count


def drawn_ranges(sizes: Sequence[int], fraction: float, seed: int) -> list[int]:
    """Return how many rows to hold out of the start of each range of rows.

    Whole ranges are drawn until the fraction is reached, and a part of the last one. Raises
    ``ValueError`` if none or all would be held out.
    """
    remaining = held_out(sum(sizes), fraction)
    taken = [0] * len(sizes)
    for place in np.random.default_rng(seed).permutation(len(sizes)):
        taken[place] = min(sizes[place], remaining)
        remaining -= taken[place]
    return taken


def drawn_alike(classes: NDArray[Any], fraction: float, seed: int) -> NDArray[np.bool_]:
    """Return which samples to hold out, so that each class has its share, to one sample.

    Raises ``ValueError`` if a class has a single sample, or if none or all would be held out.
    """
    names, numbers, sizes = np.unique(classes, return_inverse=True, return_counts=True)
    if sizes.min() < 2:
        raise ValueError(
            f"stratify=True: class {names[sizes.argmin()].item()!r} has a single sample, of which "
            "training and validation cannot both have one; leave it out, or merge it with another"
        )
    count = held_out(len(classes), fraction)
    shares = sizes * (count / len(classes))
    of_classes = np.floor(shares).astype(int)
    most_left = np.argsort(of_classes - shares, kind="stable")
    of_classes[most_left[: count - of_classes.sum()]] += 1
    is_held_out = np.zeros(len(classes), bool)
    generator = np.random.default_rng(seed)
    for number, size in enumerate(of_classes):
        (rows,) = np.nonzero(numbers == number)
        is_held_out[generator.permutation(rows)[:size]] = True
    return is_held_out


def split_images(
    blocks: Mapping[str, FileBlock], fraction: float, seed: int
) -> tuple[dict[str, FileBlock], dict[str, FileBlock]]:
    """Return blocks of images for training and validation, with the same shares of each class.

    Raises ``ValueError`` for blocks that are no images of folders, and the errors of
    ``drawn_alike``.
    """
    if not all(block.files and block.files[0] for block in blocks.values()):
        raise ValueError(
            "stratify=True: only folders of images, a subfolder a class, say of which class each "
            "sample is before it is read; split arrays and tables with scikit-learn's "
            "train_test_split(..., stratify=y)"
        )
    images = [(block.path, name) for block in blocks.values() for name in block.files]
    classes = np.array([name.partition("/")[0] for _, name in images])
    is_held_out = drawn_alike(classes, fraction, seed)
    sides: tuple[dict[str, FileBlock], dict[str, FileBlock]] = ({}, {})
    for path in dict.fromkeys(block.path for block in blocks.values()):
        largest = max(block.rows for block in blocks.values() if block.path == path)
        first = 0
        part = 0
        file_rows = sum(folder == path for folder, _ in images)
        for side, chosen in zip(sides, (~is_held_out, is_held_out), strict=True):
            names = [
                name
                for (folder, name), is_chosen in zip(images, chosen, strict=True)
                if is_chosen and folder == path
            ]
            for start, stop in _cut_evenly(len(names), largest):
                block = FileBlock(
                    path=path,
                    part=part,
                    first=first + start,
                    rows=stop - start,
                    file_rows=file_rows,
                    files=tuple(names[start:stop]),
                )
                side[block.name] = block
                part += 1
            first += len(names)
    return sides


def _cut_evenly(number: int, largest: int) -> list[tuple[int, int]]:
    """Return the bounds of as few parts as possible, none with more rows than ``largest``."""
    bounds = np.linspace(0, number, math.ceil(number / largest) + 1, dtype=int).tolist()
    return [*pairwise(bounds)]
