"""``Inference``: evaluation and prediction as tasks, each worker on a range of consecutive blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compss_train._utils.validation import warn_user
from compss_train.data.order import split_points
from compss_train.engines import Engine, Ref, Resources
from compss_train.training.data_source import DataHandles
from compss_train.training.worker import evaluate, predict

EVALUATION_BATCH = 1024
"""Samples in a batch of an evaluation or prediction."""


@dataclass(kw_only=True)
class Inference:
    """Submits the evaluation and prediction tasks of one data set."""

    engine: Engine
    training_spec: Ref
    data: DataHandles
    batch_size: int
    resources: Resources
    devices: list[str]

    def _ranges(self) -> Iterator[tuple[str, list[int]]]:
        blocks = len(self.data.sizes)
        points = split_points(blocks, min(len(self.devices), blocks))
        for device, (start, stop) in zip(self.devices, pairwise(points), strict=False):
            yield device, list(range(start, stop))

    def evaluate(self, parameters: Ref) -> list[Ref]:
        """Submit the evaluation of these parameters; return references to each worker's measurements."""
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
            for device, numbers in self._ranges()
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
            for device, numbers in self._ranges()
        ]
        outputs = [block for outputs_of_range in self.engine.fetch(refs) for block in outputs_of_range]
        self.engine.delete(refs)
        return np.concatenate(outputs)


def skipped_batches(number: int) -> dict[str, int]:
    """Return the history field with the number of skipped batches; empty if there were none."""
    return {"skipped_batches": number} if number else {}


def warn_of_skipped_files(measured: Sequence[dict[str, Any]], known: dict[str, str]) -> None:
    """Warn of each file that tasks have skipped, unless it is in ``known``; add it there with the reason."""
    for file, reason in chain.from_iterable(part.get("skipped", {}).items() for part in measured):
        if file not in known:
            known[file] = reason
            warn_user(f"skipped {file} {reason}")
