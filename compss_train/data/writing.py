"""Writing samples as many files, from which workers can train."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy_format

from compss_train._utils.validation import check_choice, check_count
from compss_train.data.block import Block, as_block, as_tensor, concatenate, loaded, own_copy
from compss_train.data.blocked import BlockedTensor
from compss_train.data.layout import UnfitFileError, common_length
from compss_train.data.readers.npz import NAME

Part = Mapping[str, Block]
"""Some rows of each array, by name."""


def write_files(
    folder: str | os.PathLike[str],
    arrays: Mapping[str, Any],
    *,
    rows: int,
    format: str = "npz",
) -> list[str]:
    """Write arrays as files of ``rows`` samples each (the last one may have fewer); return their names in order.

    Parameters
    ----------
    folder:
        Where ``part-000000.npz`` and so on go; made if need be. It must hold no files of that format.
    arrays:
        Arrays, tensors or blocked tensors by name, ``{"x": ..., "y": ...}``, with as many samples each. Mapped ones
        are read a file's rows at a time.
    rows:
        Samples of a file.
    format:
        ``"npz"``, ``"npz-compressed"``, ``"npy"`` (one array), ``"pt"`` or ``"h5"`` (needs h5py).

    Raises ``ValueError`` for arrays of different lengths, an unknown format, and a folder with such files in it.
    """
    check_count("rows", rows)
    sources = {
        name: value if isinstance(value, BlockedTensor) else as_block(value) for name, value in arrays.items()
    }
    try:
        length = common_length({name: _length(source) for name, source in sources.items()})
    except UnfitFileError as error:
        raise ValueError(f"what was given to be written {error}") from None
    starts = range(0, length, rows)
    parts = ({name: _slice(s, start, start + rows) for name, s in sources.items()} for start in starts)
    return write_parts(folder, parts, format=format)


def write_parts(folder: str | os.PathLike[str], parts: Iterable[Part], *, format: str = "npz") -> list[str]:
    """Write each part as a file, as ``write_files`` does; where that fails, none is left."""
    check_choice("format", format, tuple(_WRITERS))
    suffix, write = f".{format.partition('-')[0]}", _WRITERS[format]
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if there := next(folder.glob(f"*{suffix}"), None):
        raise ValueError(f"{folder} holds {there.name} already, and files of two data sets would mix; give another")
    written: list[Path] = []
    try:
        for number, part in enumerate(parts):
            written.append(folder / f"part-{number:06d}{suffix}")
            write(written[-1], part)
    except BaseException:
        for path in written:  # a few of the files would look like all of them
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
            yield loaded(block)[low:high]
        first += len(block)


def _arrays(part: Part) -> dict[str, Any]:
    return {name: block.numpy() if isinstance(block, torch.Tensor) else block for name, block in part.items()}


def _write_npz(path: Path, part: Part, compression: int = zipfile.ZIP_STORED) -> None:
    """Write what ``numpy.savez`` would, which does not take every name."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, array in _arrays(part).items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy_format.write_array(member, np.asarray(array), allow_pickle=False)


def _write_npy(path: Path, part: Part) -> None:
    if list(part) != [NAME]:
        raise ValueError(f"a .npy file holds one array, which is called {NAME!r}, not {', '.join(part)}; take npz")
    with path.open("wb") as file:
        np.save(file, np.ascontiguousarray(_arrays(part)[NAME]), allow_pickle=False)


def _write_pt(path: Path, part: Part) -> None:
    # Copies: torch would save all that a slice is cut from.
    torch.save({name: own_copy(as_tensor(block)) for name, block in part.items()}, path)


def _write_hdf5(path: Path, part: Part) -> None:
    from compss_train.data.readers.hdf5 import h5py

    with h5py().File(path, "w") as file:
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
