"""Counts what runs from ``fit`` to ``optimizer.step``: ``python -m tests.lint_path [--names]``.

The counts are those of a debugger that steps through a fit on the serial engine, until the first
step: the package's files, types (whose methods run) and named functions. Exits with 1 if one is
above its limit: a reader of the package pays for each.
"""

import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import nn

import compss_train
from compss_train import DistributedTrainer, FileDataset
from compss_train.callbacks import Checkpoint

PACKAGE = f"{Path(compss_train.__file__).parent}/"

COUNTED = "files", "types", "functions"
LIMITS = {"arrays": (55, 34, 282), "files, validation and a checkpoint": (60, 36, 265)}


class FirstStepError(Exception):
    """Raised by the first step of the optimizer."""


class FirstStep(torch.optim.SGD):
    """Ends the fit, and the count, at the first step.

    It takes no closure, so that no step is tried before.
    """

    def step(self) -> Any:  # type: ignore[override]
        sys.settrace(None)
        raise FirstStepError


class Watch:
    """What has run of the package, each in the order of its first call."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self.types: dict[str, None] = {}
        self.functions: dict[str, None] = {}

    def call(self, frame: FrameType, event: str, argument: Any) -> None:
        """Trace a call."""
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE):
            return
        file = code.co_filename.removeprefix(PACKAGE)
        self.files.setdefault(file)
        if not code.co_name.startswith("<"):
            self.functions.setdefault(f"{file}: {code.co_qualname.replace('<locals>.', '')}")
        owner = frame.f_locals.get("self") if code.co_argcount else None
        if owner is not None and type(owner).__module__.startswith(compss_train.__name__):
            self.types.setdefault(f"{type(owner).__module__}.{type(owner).__name__}")


def watched(fit: Callable[[DistributedTrainer], object]) -> Watch:
    """Return what runs of the package until the first step of a fit."""
    watch = Watch()
    trainer = DistributedTrainer(2, engine="serial", seed=0)
    net = nn.Sequential(nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 2))
    trainer.build(net, {"optimizer": FirstStep, "lr": 0.1}, "cross_entropy")
    threading.settrace(watch.call)
    sys.settrace(watch.call)
    try:
        fit(trainer)
    except FirstStepError:
        return watch
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
    raise RuntimeError("the fit has ended without a step of its optimizer")


def fits(folder: str) -> dict[str, Callable[[DistributedTrainer], object]]:
    """Return the fits that are watched, by name."""
    x = np.random.default_rng(0).normal(size=(400, 20)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    for number, rows in enumerate((slice(200), slice(200, 400))):
        np.savez(f"{folder}/{number}.npz", x=x[rows], y=y[rows])
    options: dict[str, Any] = {"num_epochs": 2, "batch_size": 50, "progress": False}
    files = FileDataset(f"{folder}/*.npz")
    checkpoint = Checkpoint(f"{folder}/checkpoints")
    ways = (
        lambda trainer: trainer.fit(x, y, **options),
        lambda trainer: trainer.fit(
            files, validation_data=(x, y), callbacks=[checkpoint], **options
        ),
    )
    return dict(zip(LIMITS, ways, strict=True))


def main(arguments: list[str]) -> int:
    """Print the counts, with ``--names`` what was counted; return 1 if one is above its limit."""
    above = False
    with tempfile.TemporaryDirectory() as folder:
        for title, fit in fits(folder).items():
            watch = watched(fit)
            print(f"From fit to the first optimizer.step ({title}):")
            for kind, limit in zip(COUNTED, LIMITS[title], strict=True):
                names = vars(watch)[kind]
                is_above = len(names) > limit
                above = above or is_above
                print(f"{len(names):6} {kind}, limit {limit}{': too many' if is_above else ''}")
                if "--names" in arguments:
                    print(*(f"         {name}" for name in names), sep="\n")
    return int(above)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
