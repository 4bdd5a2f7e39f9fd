"""What apps print where they fail, the pictures that they draw, and the format that Fashion-MNIST comes in."""

import gzip
import struct

import numpy as np


def assert_one_line_error(done, *parts):
    assert done.returncode == 1, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert ": error: " in done.stderr
    for part in parts:
        assert part in done.stderr


def assert_wrong_option(done, *parts):
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in done.stderr.splitlines()[-1]


def assert_is_a_picture(path, least):
    """It has so many pixels along each side, and more than a few colors."""
    from matplotlib import image

    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    pixels = np.uint8(image.imread(path) * 255)
    assert min(pixels.shape[:2]) > least
    assert len(np.unique(pixels.copy().view(np.uint32))) > 20


def idx(array):
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return gzip.compress(header + array.tobytes())
