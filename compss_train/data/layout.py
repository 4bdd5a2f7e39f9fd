"""Layouts: the names, dtypes and sample shapes of a file's arrays, and checks that files agree."""

import lzma
import pickle
import struct
import textwrap
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any

import numpy as np

from compss_train.data.block import Block
from compss_train.data.values import check_dtype


class FileContentError(ValueError):
    """A file has invalid content; the message continues a sentence that starts with its name."""


CONTENT_ERRORS = (
    ValueError,
    LookupError,
    TypeError,
    ArithmeticError,
    AttributeError,
    EOFError,
    RuntimeError,
    AssertionError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    pickle.PickleError,
)
"""What a parser raises besides ``OSError``; packages for remote stores have classes of their own.
"""


@dataclass(frozen=True, slots=True)
class Field:
    """The dtype and shape that all samples of one array share."""

    dtype: str
    """The dtype as printed by numpy or torch: ``float32``, ``torch.float32``."""
    shape: tuple[int, ...]
    """The shape of one sample."""

    def __str__(self) -> str:
        return f"{textwrap.shorten(self.dtype, 60)} {self.shape}"


Layout = dict[str, Field]
"""The fields of a file's arrays, by name."""


@dataclass(frozen=True, slots=True)
class Description:
    """The number of rows and the layout of a file."""

    rows: int
    layout: Layout | None
    """``None`` if the reader can only count the samples."""
    blocks: tuple[int, ...] = ()
    """Number of rows of each part that can be read separately, in order; empty without parts."""
    classes: Mapping[str, tuple[Any, ...]] = dataclass_field(default_factory=dict)
    """The distinct values of columns that are read as class indices."""
    files: tuple[str, ...] = ()
    """For a folder of files, the name of each row's file."""
    integers: tuple[str, ...] = ()
    """Columns of integers beside other columns of an array."""
    unread_frames: int = 0
    """Number of frames of images after their first ones, which are no samples."""
    unread_files: tuple[str, ...] = ()
    """In a folder, images that are no samples because of their format or their place."""


def field_of(block: Block) -> Field:
    """Return the dtype and sample shape of a block."""
    return Field(str(block.dtype), tuple(block.shape[1:]))


UNSUPPORTED_HINT = "which torch cannot hold; convert it, or select the other arrays with keys="
"""The end of messages about unsupported fields."""


def is_supported(field: Field) -> bool:
    """Return whether torch has the dtype of a field."""
    if field.dtype.startswith("torch."):
        return True
    try:
        check_dtype(np.dtype(field.dtype))
    except (TypeError, ValueError):  # numpy cannot parse what it prints of structured dtypes
        return False
    return True


def check_same_layout(layout: Layout, reference: Layout, name: str) -> None:
    """Raise ``FileContentError`` unless a layout equals that of the file called ``name``."""
    if set(layout) != set(reference):
        raise FileContentError(
            f"holds arrays {quote_names(layout)}, but {name} holds {quote_names(reference)}"
        )
    for key, field in layout.items():
        if field != reference[key]:
            raise FileContentError(
                f"holds samples of {field} in {key!r}, but {name} of {reference[key]}"
            )


def check_same_description(description: Description, reference: Description, name: str) -> None:
    """Raise ``FileContentError`` unless a description fits that of the file called ``name``.

    The same columns are classes, and layouts are equal.
    """
    for column in description.classes.keys() | reference.classes.keys():
        content = _content_of(description, column)
        reference_content = _content_of(reference, column)
        if content != reference_content:
            raise FileContentError(
                f"holds {content} in {column!r}, but {name} holds {reference_content}: make all "
                "of one type"
            )
    if description.layout is not None and reference.layout is not None:
        check_same_layout(description.layout, reference.layout, name)


def _content_of(description: Description, column: str) -> str:
    kinds = sorted({type(value).__name__ for value in description.classes.get(column, ())})
    return f"classes ({', '.join(kinds)})" if kinds else "numbers"


def common_length(lengths: Mapping[str, int]) -> int:
    """Return the length of all arrays; raise ``FileContentError`` if lengths differ or are 0."""
    if not lengths:
        raise FileContentError("holds no arrays")
    if len(set(lengths.values())) > 1:
        lengths_text = ", ".join(f"{key!r} {length}" for key, length in lengths.items())
        raise FileContentError(
            f"holds arrays of different lengths: {lengths_text}; each needs a row per sample: "
            "select with keys="
        )
    length = next(iter(lengths.values()))
    if length == 0:
        raise FileContentError("holds no samples")
    return length


def quote_names(names: Iterable[str]) -> str:
    """Return the quoted names, separated by commas, for messages."""
    return ", ".join(map(repr, names))


def check_weight_shape(name: str, shape: tuple[int, ...]) -> None:
    """Raise ``ValueError`` unless samples of this shape are single numbers, as weights must be."""
    if shape not in ((), (1,)):
        raise ValueError(
            f"{name} has the shape {shape} for each sample; give one number per sample"
        )
