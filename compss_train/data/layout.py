"""Layouts: which arrays a file holds, of what dtypes and shapes, and whether files agree."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from compss_train.data.block import Block, check_dtype


class UnfitFileError(ValueError):
    """A file does not hold what it should; the message goes on where the file's name would end."""


@dataclass(frozen=True, slots=True)
class Field:
    """What all samples of one array have in common."""

    dtype: str
    """As numpy or torch prints it: ``float32``, ``torch.float32``."""
    shape: tuple[int, ...]
    """Of one sample."""

    def __str__(self) -> str:
        return f"{textwrap.shorten(self.dtype, 60)} {self.shape}"


Layout = dict[str, Field]
"""The arrays of a file by name."""


@dataclass(frozen=True, slots=True)
class Description:
    """What is known of a file without its data."""

    rows: int
    layout: Layout | None
    """``None`` where the reader tells how many samples there are, and no more."""


def field_of(block: Block) -> Field:
    """Return what the block's rows have in common."""
    return Field(str(block.dtype), tuple(block.shape[1:]))


NOT_HELD = "which torch cannot hold; convert it, or leave it out by naming the arrays to read in keys="
"""What is said of other fields."""


def torch_holds(field: Field) -> bool:
    """Tell whether torch can hold such an array."""
    if field.dtype.startswith("torch."):
        return True
    try:
        check_dtype(np.dtype(field.dtype))
    except (TypeError, ValueError):  # of numpy too, which cannot read back how it prints structured types
        return False
    return True


def check_alike(layout: Layout, reference: Layout, name: str) -> None:
    """Raise ``ValueError`` unless a layout is that of the reference file, which is called ``name``."""
    if set(layout) != set(reference):
        raise UnfitFileError(f"holds arrays {listed(layout)}, but {name} holds {listed(reference)}")
    for key, field in layout.items():
        if field != reference[key]:
            raise UnfitFileError(f"holds samples of {field} in {key!r}, but {name} of {reference[key]}")


def common_length(lengths: Mapping[str, int]) -> int:
    """Return the length that all arrays have; raise ``UnfitFileError`` where they differ or there is no sample."""
    if not lengths:
        raise UnfitFileError("holds no arrays")
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{key!r} {length}" for key, length in lengths.items())
        raise UnfitFileError(f"holds arrays of different lengths: {listed}; each needs a row a sample")
    length = next(iter(lengths.values()))
    if length == 0:
        raise UnfitFileError("holds no samples")
    return length


def listed(names: Iterable[str]) -> str:
    """Return names for a message."""
    return ", ".join(map(repr, names))


def check_weight_shape(name: str, shape: tuple[int, ...]) -> None:
    """Raise ``ValueError`` unless what a sample has in an array of weights is a single number."""
    if shape not in ((), (1,)):
        raise ValueError(f"{name} holds {shape} for each sample; weights are one number a sample")
