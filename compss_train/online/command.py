"""What the command ``compss-train send`` does."""

from __future__ import annotations

import argparse
from typing import BinaryIO

import numpy as np

from compss_train.exceptions import TrainingEndedError
from compss_train.online.raw import RawFormat, shape_of
from compss_train.online.sender import SampleSender


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
