"""Tasks of another library that make blocks, as dislib's do: returned, and into a collection of placeholders."""

import numpy as np
from pycompss.api.parameter import COLLECTION_OUT
from pycompss.api.task import task


class Tensor:
    """What this project knows of a dislib tensor: a grid of blocks."""

    def __init__(self, tensors):
        self.tensors = tensors


def rows(start, stop):
    """Return samples and their classes, the same ones for the same numbers."""
    x = np.random.default_rng(0).normal(size=(200, 6)).astype(np.float32)[start:stop]
    return x, (x.sum(1) > 0).astype(np.int64)


@task(returns=2)
def made(start, stop):
    return rows(start, stop)


@task(xs=COLLECTION_OUT, ys=COLLECTION_OUT)
def filled(xs, ys, start, size):
    for number in range(len(xs)):
        first = start + number * size
        xs[number], ys[number] = rows(first, first + size)


@task(returns=1)
def broken():
    raise RuntimeError("a task of another library")
