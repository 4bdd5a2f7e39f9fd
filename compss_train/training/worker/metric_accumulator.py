"""``MetricAccumulator``: losses and metrics over the batches of a task; and notes on exceptions of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from compss_train.model.metrics import Measures
from compss_train.model.metrics.batch_mean import WeightedSum
from compss_train.model.training_spec import ModelReplica


class MetricAccumulator:
    """Sums of losses over samples, and the states of metrics."""

    def __init__(self, measures: Measures) -> None:
        self._samples = 0
        self._batches = 0
        self._skipped = 0
        self._loss = WeightedSum()
        self._metrics = measures.start()

    def add(self, samples: int, loss: torch.Tensor, output: torch.Tensor, target: torch.Tensor) -> None:
        """Add a batch, whose loss is the mean over its samples."""
        self._samples += samples
        self._batches += 1
        self._loss.add(loss, samples)
        if self._metrics:
            with torch.no_grad():
                detached = output.detach() if isinstance(output, torch.Tensor) else output
                self._metrics.update(detached, target, samples)

    def skip(self) -> None:
        """Count a batch that was not trained on."""
        self._skipped += 1

    @property
    def loss(self) -> float:
        """The sum of the losses of all samples."""
        return self._loss.total()

    def sums(self) -> dict[str, Any]:
        """Return counts, ``skipped_batches`` if any, the sum of losses, and the states of ``metrics`` by name."""
        counts = {"samples": self._samples, "batches": self._batches}
        if self._skipped:
            counts["skipped_batches"] = self._skipped
        return {**counts, "loss": self.loss, "metrics": self._metrics.states()}


@contextmanager
def annotate_errors(
    x: torch.Tensor, replica: ModelReplica, y: torch.Tensor | None = None, *, own_target: bool = False
) -> Iterator[None]:
    """Add notes on the batch and the network to an exception that leaves the block."""
    try:
        yield
    except Exception as error:
        own = str(x.dtype).removeprefix("torch.")
        dtypes = sorted({str(p.dtype).removeprefix("torch.") for p in replica.training_spec.net.parameters()})
        convert = "" if own in dtypes else " If that is what is wrong, convert x, or batches by build(transform=)."
        error.add_note(
            f"While a batch of x with shape {tuple(x.shape)} and dtype {own} went through a network with "
            f"{', '.join(dtypes)} parameters.{convert}"
        )
        if own_target:
            error.add_note("There is no y, so that x is its own target.")
        if str(error).startswith("Target ") and y is not None and y.numel() and not y.is_floating_point():
            error.add_note(
                f"The targets of the batch go from {int(y.min())} to {int(y.max())}: classes are numbered from 0, "
                "and the network needs an output for each."
            )
        raise
