"""Small files, and a reader of the user's own for them."""

import numpy as np

FILES = ["0.npz", "1.npz", "2.npz"]


def write(name, rows, **more):
    np.savez(name, x=np.full((rows, 2), rows, np.float32), y=np.arange(rows), **more)


def reader(filename, get_data=False):
    with np.load(filename) as npz:
        arrays = dict(npz)
    return (arrays, len(arrays["x"])) if get_data else len(arrays["x"])
