"""What a task measures while it goes through batches, and what it says when a batch fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from compss_train.losses import BatchFunction
from compss_train.worker.recipe import Replica

_FOLD = 1024  # batches after which values are summed, so that they do not pile up on the device


class _WeightedSum:
    """A sum of means times their batches' sizes, in double precision.

    Values are kept as they come and summed later: arithmetic on single numbers costs as much as small layers do,
    and reading one would wait for the device.
    """

    def __init__(self) -> None:
        self._total = 0.0
        self._values: list[torch.Tensor] = []
        self._weights: list[int] = []

    def add(self, value: torch.Tensor | float, weight: int) -> None:
        self._values.append(torch.as_tensor(value).detach().reshape(()))
        self._weights.append(weight)
        if len(self._values) == _FOLD:
            self._fold()

    def _fold(self) -> None:
        if self._values:
            values = torch.stack(self._values).double().cpu()
            self._total += float(values @ torch.tensor(self._weights, dtype=torch.float64))
        self._values, self._weights = [], []

    def total(self) -> float:
        self._fold()
        return self._total


class Tally:
    """Sums over samples of what batches measure."""

    def __init__(self, metric: BatchFunction | None) -> None:
        self._function = metric
        self._samples = 0
        self._batches = 0
        self._loss = _WeightedSum()
        self._metric = _WeightedSum()

    def add(self, samples: int, loss: torch.Tensor, output: torch.Tensor, target: torch.Tensor) -> None:
        """Add a batch, whose loss and metric are means over its samples."""
        self._samples += samples
        self._batches += 1
        self._loss.add(loss, samples)
        if self._function is not None:
            with torch.no_grad():
                detached = output.detach() if isinstance(output, torch.Tensor) else output
                self._metric.add(self._function(detached, target), samples)

    def sums(self) -> dict[str, float]:
        """Return the sums; ``metric`` is there only where one was asked for."""
        sums = {"samples": self._samples, "batches": self._batches, "loss": self._loss.total()}
        return sums if self._function is None else {**sums, "metric": self._metric.total()}


@contextmanager
def explained(x: torch.Tensor, replica: Replica) -> Iterator[None]:
    """Add what the batch and the network are to an exception that leaves the block."""
    try:
        yield
    except Exception as error:
        dtypes = sorted({str(p.dtype).removeprefix("torch.") for p in replica.recipe.net.parameters()})
        error.add_note(
            f"While a batch of x with shape {tuple(x.shape)} and dtype {str(x.dtype).removeprefix('torch.')} "
            f"went through a network with {', '.join(dtypes)} parameters. If types differ, convert the array "
            "before BlockedTensor.from_array, or the batch by build(..., transform=...)."
        )
        raise
