"""Writing samples to many files."""

import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from compss_train._utils.validation import check_choice, check_count
from compss_train.data.block import Block, as_block, as_tensor, concatenate, copy_block, load_block
from compss_train.data.blocked import BlockedTensor
from compss_train.data.layout import FileContentError, common_length
from compss_train.data.readers.arrays import ARRAY_NAME, write_npz

Part = Mapping[str, Block]
"""Some rows of each array, by name."""


def write_files(
    folder: str | os.PathLike[str],
    arrays: Mapping[str, Any],
    *,
    rows: int,
    format: str = "npz",
) -> list[str]:
    """Write arrays to files of ``rows`` samples each (the last one may be smaller); return their names in order.

    Parameters
    ----------
    folder:
        Folder of the files ``part-000000.npz`` and so on; created if necessary. It must not contain files of that
        format.
    arrays:
        Arrays, tensors or blocked tensors by name, ``{"x": ..., "y": ...}``, with the same number of samples.
        Memory-mapped arrays are read one file's rows at a time.
    rows:
        Number of samples in a file.
    format:
        ``"npz"``, ``"npz-compressed"``, ``"npy"`` (one array), ``"pt"`` or ``"h5"`` (needs h5py).

    Raises ``ValueError`` for arrays of different lengths, an unknown format, and a folder that contains such files.
    """
    check_count("rows", rows)
    sources = {
        name: value if isinstance(value, BlockedTensor) else as_block(value) for name, value in arrays.items()
    }
    try:
        length = common_length({name: _length(source) for name, source in sources.items()})
    except FileContentError as error:
        raise ValueError(f"arrays={list(arrays)} {error}") from None
    starts = range(0, length, rows)
    parts = ({name: _slice(s, start, start + rows) for name, s in sources.items()} for start in starts)
    return write_parts(folder, parts, format=format)


def write_parts(folder: str | os.PathLike[str], parts: Iterable[Part], *, format: str = "npz") -> list[str]:
    """Write each part to a file, as ``write_files`` does; on failure all files are removed."""
    check_choice("format", format, FORMATS)
    suffix, write = f".{format.partition('-')[0]}", _WRITERS[format]
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if existing := next(folder.glob(f"*{suffix}"), None):
        raise ValueError(f"{folder} already contains {existing.name}; give a folder without {suffix} files")
    written: list[Path] = []
    try:
        for number, part in enumerate(parts):
            written.append(folder / f"part-{number:06d}{suffix}")
            write(written[-1], part)
    except BaseException:
        for path in written:  # an incomplete set of files would look complete
            path.unlink(missing_ok=True)
        raise
    return list(map(str, written))


def _length(source: Block | BlockedTensor) -> int:
    return source.number_samples if isinstance(source, BlockedTensor) else len(source)


def _slice(source: Block | BlockedTensor, start: int, stop: int) -> Block:
    if not isinstance(source, BlockedTensor):
        return source[start:stop]
    return concatenate(list(_rows_of_blocks(source, start, stop)))


def _rows_of_blocks(tensor: BlockedTensor, start: int, stop: int) -> Iterator[Block]:
    first = 0
    for block in tensor.blocks():
        low, high = max(start - first, 0), min(stop - first, len(block))
        if low < high:
            yield load_block(block)[low:high]
        first += len(block)


def _arrays(part: Part) -> dict[str, Any]:
    return {name: block.numpy() if isinstance(block, torch.Tensor) else block for name, block in part.items()}


def _write_npz(path: Path, part: Part, compression: int = zipfile.ZIP_STORED) -> None:
    write_npz(path, _arrays(part), compression)


def _write_npy(path: Path, part: Part) -> None:
    if list(part) != [ARRAY_NAME]:
        raise ValueError(
            f"a .npy file holds one array, named {ARRAY_NAME!r}, not {', '.join(part)}; use the format npz"
        )
    with path.open("wb") as file:
        np.save(file, np.ascontiguousarray(_arrays(part)[ARRAY_NAME]), allow_pickle=False)


def _write_pt(path: Path, part: Part) -> None:
    # Copies, as torch would save the whole array of a slice.
    torch.save({name: copy_block(as_tensor(block)) for name, block in part.items()}, path)


def _write_hdf5(path: Path, part: Part) -> None:
    from compss_train.data.readers.hdf5 import import_h5py

    with import_h5py().File(path, "w") as file:
        for name, array in _arrays(part).items():
            file[name] = array


_WRITERS: dict[str, Callable[[Path, Part], None]] = {
    "npz": _write_npz,
    "npz-compressed": partial(_write_npz, compression=zipfile.ZIP_DEFLATED),
    "npy": _write_npy,
    "pt": _write_pt,
    "h5": _write_hdf5,
}

FORMATS = tuple(_WRITERS)
"""The formats that can be written."""
