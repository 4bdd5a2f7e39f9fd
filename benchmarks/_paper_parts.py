"""What runs beside the programs of ``paper_programs``: what runs one, and what it may import.

A copy of this file is in the folder of each program, under this name, so that workers find it.
"""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import sys
import time
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

CLIPPING = 0.01
"""A gradient has at most this part of the norm of its parameter, in the paper's forks of dislib."""
PADDING = 4
"""Pixels that images are padded with before a random part is cut out."""


def run_program(program: str, arguments: list[str], seed: int, threads: int) -> dict[str, Any]:
    """Run a program; return what it printed, its seconds, and our samples/s of each round."""
    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    sys.argv = [program, *arguments]
    began = time.perf_counter()
    shown = io.StringIO()
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()) as printed,
            contextlib.redirect_stderr(shown),
        ):
            runpy.run_path(program, run_name="__main__")
    finally:
        sys.stderr.write(shown.getvalue())
    seconds = time.perf_counter() - began
    texts = re.findall(r"([\d,]+) samples/s", shown.getvalue())
    rates = [float(text.replace(",", "")) for text in texts]
    return {"printed": printed.getvalue(), "seconds": seconds, "rates": rates}


# -- what the forks' tasks do with each batch


def crop_and_flip(images: Tensor) -> Tensor:
    """Cut the same random part out of all padded images of a batch, and flip all or none."""
    height, width = images.shape[-2:]
    top = int(torch.randint(0, 2 * PADDING, (1,)))
    left = int(torch.randint(0, 2 * PADDING, (1,)))
    padded = pad(images, PADDING, padding_mode="reflect")
    part = padded[..., top : top + height, left : left + width]
    return hflip(part) if torch.rand(1) < 0.5 else part


def clip(model: nn.Module) -> None:
    """Scale each gradient that is too large for its parameter."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            limit = CLIPPING * parameter.detach().norm()
            norm = parameter.grad.norm()
            if norm > limit:
                parameter.grad.mul_(limit / (norm + 1e-6))


# -- the part of torchvision that the programs call, for machines without it


class InterpolationMode(Enum):
    """Unused, but a default argument."""

    BILINEAR = "bilinear"


def pad(images: Tensor, padding: int, padding_mode: str) -> Tensor:
    """Pad all four sides."""
    return functional.pad(images, (padding,) * 4, mode=padding_mode)


def crop(images: Tensor, top: int, left: int, height: int, width: int) -> Tensor:
    """Cut out a part."""
    return images[..., top : top + height, left : left + width]


def hflip(images: Tensor) -> Tensor:
    """Swap left and right."""
    return images.flip(-1)
