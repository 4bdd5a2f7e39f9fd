"""``WorkerCallback``: hooks that run inside the workers, around batches and rounds."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from compss_train.model.training_step import measured_number


@dataclass(kw_only=True)
class WorkerContext:
    """What a ``WorkerCallback`` sees of its worker; ``log`` writes to the record of the round."""

    worker: int
    """The number of the worker."""
    round: int
    """The number of the round, counted from 0 over all fits, as in records."""
    model: nn.Module
    """The worker's copy of the network, on its device."""
    optimizer: torch.optim.Optimizer
    epoch: int = 0
    """The epoch of the batch, counted from 0 over all fits."""
    number: int = 0
    """How many batches the worker has trained before this one, since ``build``."""
    x: Any = None
    """The batch as the network gets it, and its targets in ``y``; ``None`` outside of batches."""
    y: Any = None
    loss: Tensor | None = None
    """The loss of the batch, without its graph; ``None`` before its step, and if ``on_nan="skip"`` skipped it."""
    output: Any = None
    """The outputs of the network, where the training step returns them; ``None`` before the step."""
    logged: dict[str, Any] = field(default_factory=dict)
    """What ``log`` was called with in the present hooks."""

    def log(self, name: str, value: Any) -> None:
        """Measure a number: records have its mean over samples, those of the batch or of the round.

        Raises ``ValueError`` for the name of another field, and ``TypeError`` unless it is a single number.
        """
        value = measured_number(name, value)
        self.logged[name] = value.detach().clone() if isinstance(value, Tensor) else value


class WorkerCallback:
    """Base class of callbacks that run in the workers' tasks. All hooks do nothing; override those that you need.

    Give them in ``callbacks=`` of ``fit``, with others. They are pickled, and each worker starts every round with a
    copy of the object that was given; what it keeps from round to round, also in checkpoints, is its
    ``state_dict``. Hooks may read everything, log numbers, and change parameters (in place, under
    ``torch.no_grad()``), gradients and options of the optimizer. For the same bits on every engine and after a
    retry they must depend on nothing else: not on time, files or other processes. Random numbers are those of the
    worker. They must keep no tensor of the batch. An exception ends the fit, and names callback, round and worker.

    What is logged around a batch counts by its samples. What is logged at the start and end of a round counts by
    the samples that the worker has trained on in it, ``samples`` of the worker in the record, whatever was planned:
    workers that have trained on none do not count, unless there are no others; then it is the plain mean of them.
    """

    def on_round_start(self, context: WorkerContext) -> None:
        """Run before the first batch of a worker's round, with the merged parameters."""

    def on_batch_start(self, context: WorkerContext) -> None:
        """Run before the step of a batch."""

    def on_batch_end(self, context: WorkerContext) -> None:
        """Run after the step; gradients are still there, clipped, and with ``accumulate`` those added up so far."""

    def on_round_end(self, context: WorkerContext) -> None:
        """Run after the last batch, before the parameters are merged."""

    def state_dict(self) -> dict[str, Any]:
        """Return what the worker keeps: numbers, strings, arrays and tensors on the CPU, in dicts and lists."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of ``state_dict``; called before ``on_round_start`` where the worker has one."""
