"""What a task measures while it goes through batches, and what it says when a batch fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from compss_train.losses import BatchFunction
from compss_train.worker.recipe import Replica


class Tally:
    """Sums over samples, kept on the device so that no batch waits for a transfer."""

    def __init__(self, with_metric: bool) -> None:
        self._samples = 0
        self._batches = 0
        self._loss: torch.Tensor | float = 0.0
        self._metric: torch.Tensor | float | None = 0.0 if with_metric else None

    def add(
        self,
        samples: int,
        loss: torch.Tensor,
        output: torch.Tensor,
        target: torch.Tensor,
        metric: BatchFunction | None,
    ) -> None:
        """Add a batch, whose loss and metric are means over its samples."""
        self._samples += samples
        self._batches += 1
        self._loss = self._loss + _double(loss) * samples
        if metric is not None and self._metric is not None:
            with torch.no_grad():
                self._metric = self._metric + _double(metric(output.detach(), target)) * samples

    def sums(self) -> dict[str, float]:
        """Return the sums; ``metric`` is there only where one was asked for."""
        sums = {"samples": self._samples, "batches": self._batches, "loss": float(self._loss)}
        return sums if self._metric is None else {**sums, "metric": float(self._metric)}


def _double(value: torch.Tensor | float) -> torch.Tensor | float:
    return value.detach().double() if isinstance(value, torch.Tensor) else value


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
