"""``WorkerState``: what a worker keeps from task to task."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import Any, Self

import torch

from compss_train._utils import PickledByFields
from compss_train.model.devices import RandomState
from compss_train.model.parameters import Parameters


@dataclass(frozen=True, slots=True)
class WorkerState(PickledByFields):
    """What a worker keeps from task to task, such as the state of its optimizer."""

    optimizer: dict[str, Any] | None
    """The optimizer's state_dict with names of parameters; ``None`` makes a new optimizer."""
    random: RandomState | int
    """The state of the random number generators, or the seed of a new worker."""
    sample_buffer: dict[str, Any] | None = None
    """Within an epoch, the state of a buffer that merges by batches do not empty."""
    error: Parameters | None = None
    """The accumulated compression error of the changes, with ``Merge(dtype=...)``."""
    batches: int = 0
    """Number of batches that the worker has trained, for training steps."""
    module_buffers: dict[str, torch.Tensor] | None = None
    """The worker's own buffers that have changed, and those of ``Merge(buffers=...)``."""
    attributes: dict[str, Any] | None = None
    """What else objects keep that a new copy has not, by paths such as ``network.0.begun``."""
    scaler: dict[str, Any] | None = None
    """The state of the loss scaler in fp16."""
    callbacks: dict[str, Any] | None = None
    """The states of worker callbacks, by their names."""
    skipped: bool = False
    """Whether the last task skipped batches, so that the next one checks each on its own."""

    def with_options(self, options: Sequence[dict[str, Any]]) -> Self:
        """Return this state with other options of parameter groups, such as ``lr``."""
        if self.optimizer is None:
            return self
        saved = self.optimizer["param_groups"]
        options_by_group = chain(options, repeat({}))  # callbacks may have added groups at the end
        groups = [
            {**group, **changed} for group, changed in zip(saved, options_by_group, strict=False)
        ]
        return replace(self, optimizer={**self.optimizer, "param_groups": groups})

    def without_buffers(self, names: Collection[str]) -> Self:
        """Return this state without the worker's own buffers of these names."""
        if not self.module_buffers:
            return self
        kept = {name: value for name, value in self.module_buffers.items() if name not in names}
        return replace(self, module_buffers=kept or None)


@dataclass
class CarriedBuffer:
    """The state of a worker's buffer, which passes from task to task inside an epoch."""

    before: dict[str, Any] | None = None
    """The state before a task, which the task does not change."""
    after: dict[str, Any] | None = None
    """The state after a task; ``None`` for an empty buffer."""
