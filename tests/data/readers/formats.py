"""Every file format: how the tests write it, and its reader."""

import io
import os
import re
import struct
import threading
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from compss_train import BadFileError
from compss_train.data.files import FileDataset
from compss_train.data.order import RowRange
from compss_train.data.readers import as_reader


@dataclass(frozen=True)
class Format:
    suffix: str
    write: Callable[..., Any]
    function: Callable[..., Any] | None = None
    """The user's function, if any."""
    named: bool = True
    """Whether files have several arrays, by name."""

    def saved(self, folder, name="f", **arrays):
        path = folder / f"{name}{self.suffix}"
        self.write(path, **arrays)
        return str(path)

    def path(self, folder, name="f"):
        return str(folder / f"{name}{self.suffix}")

    @property
    def reader(self):
        return as_reader(self.function, [f"f{self.suffix}"])


def save_npy(path, x):
    np.save(path, x)


def save_pt(path, **arrays):
    torch.save({key: _tensor(array) for key, array in arrays.items()}, path)


def save_hdf5(path, *, chunks=None, **arrays):
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            file.create_dataset(
                key, data=array, chunks=chunks if np.ndim(array) and np.size(array) else None
            )


def save_bin(path, **arrays):
    with open(path, "wb") as file:
        np.savez(file, **arrays)


PARSING = threading.Lock()
"""numpy parses headers by ast, which in Python 3.11 fails in several threads at once."""


def read_bin(filename, get_data=False):
    with PARSING, open(filename, "rb") as file, np.load(file) as npz:
        arrays = dict(npz)
    lengths = {len(array) for array in arrays.values()}
    return (arrays, max(lengths)) if get_data else max(lengths)


def _tensor(array):
    return array if isinstance(array, torch.Tensor) else torch.from_numpy(np.array(array))


FORMATS = {
    "npz": Format(".npz", np.savez),
    "npz compressed": Format(".npz", np.savez_compressed),
    "npy": Format(".npy", save_npy, named=False),
    "pt": Format(".pt", save_pt),
    "hdf5": Format(".h5", save_hdf5),
    "hdf5 in chunks": Format(".hdf5", partial(save_hdf5, chunks=True)),
    "custom": Format(".bin", save_bin, read_bin),
}
OWN = {name: form for name, form in FORMATS.items() if form.function is None}
NAMED = {name: form for name, form in FORMATS.items() if form.named}


def read_file(path, function=None, **options):
    """Return the arrays as a fit reads them: described, then read and checked against the
    description.
    """
    dataset = FileDataset([path], function, **options)
    part = dataset.part([0])
    return part.read(RowRange(0, 0, dataset.sizes[0]))


def with_header(path, shape, data):
    """Write an array's file, or a .npz of one, with an arbitrary header."""
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    content = b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + data
    if not str(path).endswith(".npz"):
        path.write_bytes(content)
        return
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", content)


class Bomb:
    """An object that creates a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def npz_bytes(save=np.savez, **arrays):
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def in_every(formats):
    return pytest.mark.parametrize("form", formats.values(), ids=formats)


def names(path, reason=""):
    """Expect an error that names the file, or a part of it."""
    return pytest.raises(BadFileError, match=f"(?s)^{re.escape(str(path))}(#\\d+)? .*{reason}")


def filled(shape, dtype=np.float32):
    return (np.arange(np.prod(shape)) % 7 * 0.75 + 0.5).reshape(shape).astype(dtype)


def same(read, saved):
    read = read.numpy() if isinstance(read, torch.Tensor) else read
    np.testing.assert_array_equal(read, saved, strict=True)


def overwritten(path, array):
    """Overwrite the array's bytes in the file."""
    with open(path, "r+b") as file:
        at = file.read().find(array.tobytes())
        assert at > 0
        file.seek(at)
        file.write(bytes(255 - byte for byte in array.tobytes()))


X = filled((7, 3))
Y = np.arange(7) * 1_000_003
