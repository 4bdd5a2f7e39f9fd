"""Checks of readers: an error that names the file, and arrays to save and compare."""

import re

import numpy as np
import pytest
import torch

from compss_train import BadFileError


def in_every(formats):
    return pytest.mark.parametrize("form", formats.values(), ids=formats)


def names(path, reason=""):
    """Expect an error that names the file."""
    return pytest.raises(BadFileError, match=f"(?s)^{re.escape(str(path))} .*{reason}")


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


X, Y = filled((7, 3)), np.arange(7) * 1_000_003
