"""Writing samples to many files."""

import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from compss_train._utils.files import write_in_memory
from compss_train._utils.validation import check_choice, check_count
from compss_train.data.block import Block, as_block, as_tensor, concatenate, copy_block
from compss_train.data.blocked import BlockedTensor
from compss_train.data.layout import FileContentError, common_length
from compss_train.data.ragged import Ragged
from compss_train.data.readers.arrays import ARRAY_NAME, write_npz
from compss_train.data.readers.hdf5 import import_h5py
from compss_train.data.remote_block import AnyBlock, load_block

FORMATS = ("npz", "npz-compressed", "npy", "pt", "h5")
"""The formats that can be written."""

Part = Mapping[str, Block]
"""Some rows of each array, by name."""


def write_files(
    folder: str | os.PathLike[str], arrays: Mapping[str, Any], *, rows: int, format: str = "npz"
) -> list[str]:
    """Write arrays to files of ``rows`` samples each, and return the files' names in order.

    Parameters
    ----------
    folder:
        Folder of the files ``part-000000.npz`` and so on; created if necessary. It must not contain
        files of that format.
    arrays:
        Arrays, tensors or blocked tensors by name, ``{"x": ..., "y": ...}``, with the same number
        of samples. Memory-mapped arrays are read one file's rows at a time.
    rows:
        Number of samples in a file; the last file may have fewer.
    format:
        ``"npz"``, ``"npz-compressed"``, ``"npy"`` (one array), ``"pt"`` or ``"h5"`` (needs h5py).

    Raises ``ValueError`` for arrays of different lengths, sequences that differ in length, an
    unknown format, and a folder that contains such files.
    """
    check_count("rows", rows)
    blocks: dict[str, list[AnyBlock]] = {
        name: list(value.blocks()) if isinstance(value, BlockedTensor) else [as_block(value)]
        for name, value in arrays.items()
    }
    lengths = {name: sum(map(len, array_blocks)) for name, array_blocks in blocks.items()}
    try:
        length = common_length(lengths)
    except FileContentError as error:
        raise ValueError(f"arrays={list(arrays)} {error}") from None
    parts = (
        {name: _rows(array_blocks, start, start + rows) for name, array_blocks in blocks.items()}
        for start in range(0, length, rows)
    )
    return write_parts(folder, parts, format=format)


def write_parts(
    folder: str | os.PathLike[str], parts: Iterable[Part], *, format: str = "npz"
) -> list[str]:
    """Write each part to a file, as ``write_files`` does; on failure all files are removed."""
    check_choice("format", format, FORMATS)
    suffix = f".{format.partition('-')[0]}"
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    existing = next(folder.glob(f"*{suffix}"), None)
    if existing is not None:
        raise ValueError(
            f"{folder} already contains {existing.name}; give a folder without {suffix} files"
        )
    written: list[Path] = []
    try:
        for number, part in enumerate(parts):
            written.append(folder / f"part-{number:06d}{suffix}")
            write_part(written[-1], part, format)
    except BaseException:
        for path in written:  # an incomplete set of files could be mistaken for a complete one
            path.unlink(missing_ok=True)
        raise
    return list(map(str, written))


def _rows(blocks: Sequence[AnyBlock], start: int, stop: int) -> Block:
    """Return rows ``start`` to ``stop`` of consecutive blocks."""
    parts = []
    first = 0
    for block in blocks:
        low = max(start - first, 0)
        high = min(stop - first, len(block))
        if low < high:
            parts.append(load_block(block)[low:high])
        first += len(block)
    return concatenate(parts)


def write_part(path: Path, part: Part, format: str) -> None:
    """Write some rows to one file, as ``write_files`` does.

    Raises ``ValueError`` for what the format cannot hold.
    """
    for name, block in part.items():
        if isinstance(block, Ragged):
            raise ValueError(
                f"{name!r} holds sequences of different lengths, which these files cannot hold: "
                "pad them, as Ragged(...).padded(0)"
            )
    if format == "pt":  # copies, as torch would save the whole array of a slice
        content = {name: copy_block(as_tensor(block)) for name, block in part.items()}
        write_in_memory(path, partial(torch.save, content))
        return
    arrays = {}
    for name, block in part.items():
        try:
            arrays[name] = as_tensor(block).resolve_conj().resolve_neg().numpy()
        except TypeError:  # numpy has no bfloat16
            raise ValueError(
                f"{name!r} holds {block.dtype}, which only the format pt can hold"
            ) from None
    if format == "npy":
        if list(part) != [ARRAY_NAME]:
            raise ValueError(
                f"a .npy file holds one array, named {ARRAY_NAME!r}, not {', '.join(part)}; use "
                "the format npz"
            )
        with path.open("wb") as file:
            np.save(file, np.ascontiguousarray(arrays[ARRAY_NAME]), allow_pickle=False)
    elif format == "h5":
        with import_h5py().File(path, "w") as file:
            for name, array in arrays.items():
                file[name] = array
    else:
        compression = zipfile.ZIP_STORED if format == "npz" else zipfile.ZIP_DEFLATED
        write_npz(path, arrays, compression)
