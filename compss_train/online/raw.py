"""Samples as raw bytes, as any solver can write them to a pipe; ``compss-train send`` sends them."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from compss_train.exceptions import TrainingEndedError
from compss_train.online.sender import SampleSender

Shape = tuple[int, ...]


@dataclass(frozen=True)
class RawFormat:
    """A record: its time step (an int64) if records have one, x, and y if there is one, without gaps."""

    x: Shape
    y: Shape | None
    dtype: np.dtype[np.generic]
    steps: bool = False

    def read(self, file: BinaryIO) -> Iterator[tuple[int | None, list[NDArray[np.generic]]]]:
        """Iterate over the time steps and arrays of the records; ``ValueError`` where the last one is cut short."""
        shapes = [shape for shape in (self.x, self.y) if shape is not None]
        sizes = [math.prod(shape) * self.dtype.itemsize for shape in shapes]
        whole = sum(sizes) + 8 * self.steps
        while record := file.read(whole):
            if len(record) < whole:
                raise ValueError(f"the last record has {len(record)} bytes of {whole}: do shapes and dtype agree?")
            step = int(np.frombuffer(record, np.int64, 1)[0]) if self.steps else None
            arrays, start = [], 8 * self.steps
            for shape, size in zip(shapes, sizes, strict=True):
                arrays.append(np.frombuffer(record, self.dtype, math.prod(shape), start).reshape(shape))
                start += size
            yield step, arrays


def shape_of(text: str) -> Shape:
    """Return the shape that ``"64x64"`` says; ``"1"`` is one number in an array."""
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", text):
        raise ValueError(f"shape {text!r}: give numbers with x between them, such as 6 or 64x64")
    return tuple(map(int, text.split("x")))


def send(options: argparse.Namespace, token: str, file: BinaryIO) -> str:
    """Send the records in a file until it ends, or training does; return what to say about it."""
    y = None if options.y is None else shape_of(options.y)
    form = RawFormat(shape_of(options.x), y, np.dtype(options.dtype), options.steps)
    sent = 0
    try:
        with SampleSender(options.address, token, options.name, timeout=options.timeout) as sender:
            for step, arrays in form.read(file):
                sender.send(*arrays, step=step)
                sent += 1
    except TrainingEndedError:
        return f"training has ended after {sent} samples of this stream"
    return f"{sent} samples sent"
