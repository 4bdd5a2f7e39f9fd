"""Data as scripts for dislib have them: a grid of blocks, of one-hot classes and of images in
bytes.
"""

import numpy as np
import torch
from torch import nn

from tests.helpers.models import classification


class Tensor:
    """A grid of blocks of equal size, like those that dislib's ``from_array`` and
    ``from_pt_tensor`` make.
    """

    def __init__(self, array, shape):
        rows, columns = shape
        blocks = iter(
            np.split(array, rows * columns)
            if isinstance(array, np.ndarray)
            else array.chunk(rows * columns)
        )
        self.tensors = [[next(blocks) for _ in range(columns)] for _ in range(rows)]
        self.shape = shape
        self.number_samples = len(array)
        self.dtype = array.dtype
        self.tensor_shape = tuple(self.tensors[0][0].shape)

    def collect(self):
        return self.tensors


def whole(tensor):
    """Return all samples of a tensor as one torch tensor."""
    return torch.cat([torch.as_tensor(block) for row in tensor.tensors for block in row])


def tensors(dtype=torch.float64, shape=(2, 2)):
    """Return 60 samples of 6 features and their one-hot classes, of 3."""
    x, y = classification(samples=60)
    one_hot = nn.functional.one_hot(torch.from_numpy(y), 3).double()
    return Tensor(torch.from_numpy(x).to(dtype), shape), Tensor(one_hot, shape)


def images(shape=(2, 2)):
    """Return 60 arrays (1, 2, 3) of bytes, whose brightest half is their class, and the one-hot
    classes.
    """
    random = np.random.default_rng(3)
    y = random.integers(0, 2, 60)
    x = random.integers(0, 100, (60, 1, 2, 3)).astype(np.uint8)
    x[np.arange(60), 0, y] += 155
    return Tensor(x, shape), Tensor(np.eye(2)[y], shape)
