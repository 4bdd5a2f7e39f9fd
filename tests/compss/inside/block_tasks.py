"""Tasks of another library that make blocks as dislib does: returned, or put into a collection of
placeholders.
"""

import numpy as np
from pycompss.api.parameter import COLLECTION_OUT
from pycompss.api.task import task


class Tensor:
    """A grid of blocks, as in dislib's tensors."""

    def __init__(self, tensors):
        self.tensors = tensors


def samples(start, stop):
    """Return samples and their classes; they depend on the numbers only."""
    x = np.random.default_rng(0).normal(size=(200, 6)).astype(np.float32)[start:stop]
    return x, (x.sum(1) > 0).astype(np.int64)


@task(returns=2)
def make_blocks(start, stop):
    return samples(start, stop)


@task(xs=COLLECTION_OUT, ys=COLLECTION_OUT)
def fill_blocks(xs, ys, start, size):
    for number in range(len(xs)):
        first = start + number * size
        xs[number], ys[number] = samples(first, first + size)


@task(returns=1)
def fail():
    raise RuntimeError("a task of another library")
