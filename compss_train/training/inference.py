"""Evaluation and prediction as tasks: every worker takes a run of consecutive blocks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compss_train.data.order import split_points
from compss_train.engines import Engine, Ref, Resources
from compss_train.training.data_handles import DataHandles
from compss_train.training.worker import evaluate, predict

EVALUATION_BATCH = 1024
"""Samples a batch where nothing is trained."""


@dataclass
class Inference:
    """Submits evaluation and prediction tasks for one data set."""

    engine: Engine
    training_spec: Ref
    data: DataHandles
    batch_size: int
    resources: Resources
    devices: list[str]

    def _runs(self) -> Iterator[tuple[str, list[int]]]:
        blocks = len(self.data.sizes)
        points = split_points(blocks, min(len(self.devices), blocks))
        for device, (start, stop) in zip(self.devices, pairwise(points), strict=False):
            yield device, list(range(start, stop))

    def evaluate(self, parameters: Ref) -> list[Ref]:
        """Submit the evaluation of these parameters; returns references to each worker's sums."""
        return [
            self.engine.submit(
                evaluate,
                self.training_spec,
                parameters,
                *self.data.select(numbers),
                self.batch_size,
                device,
                resources=self.resources,
            )
            for device, numbers in self._runs()
        ]

    def predict(self, parameters: Ref) -> NDArray[Any]:
        """Predict and return the outputs of all samples in order."""
        refs = [
            self.engine.submit(
                predict,
                self.training_spec,
                parameters,
                self.data.select(numbers)[0],
                self.batch_size,
                device,
                resources=self.resources,
            )
            for device, numbers in self._runs()
        ]
        outputs = [block for run in self.engine.fetch(refs) for block in run]
        self.engine.delete(refs)
        return np.concatenate(outputs)


def skipped_batches(number: int) -> dict[str, int]:
    """Return how many batches were skipped, for the history; nothing where none was."""
    return {"skipped_batches": number} if number else {}


def tell_skipped(sums: Sequence[dict[str, Any]], told: dict[str, str]) -> None:
    """Warn of each file that tasks have left out, unless it is among those told; add it to them."""
    for file, reason in chain.from_iterable(part.get("skipped", {}).items() for part in sums):
        if file not in told:
            told[file] = reason
            warnings.warn(f"skipped {file} {reason}", stacklevel=3)
