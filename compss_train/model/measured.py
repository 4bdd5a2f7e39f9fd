"""``Measured``: what a task has measured of the samples of one worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True, eq=False)
class Measured:
    """What a task has measured of the samples of one worker; of a merge only the ``change``."""

    samples: int = 0
    """Samples that the worker has learnt from, or was evaluated on."""
    batches: int = 0
    skipped_batches: int = 0
    """Batches that were left out, as their loss or gradients were not finite."""
    loss: float = 0.0
    """The sum of the losses of all samples."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """The states of the metrics by name."""
    named: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """What training steps and callbacks have measured: the sum and the number of samples, or the mean and 0 if it
    was not measured on any."""
    given: int = 0
    """Samples that the worker was to train; a reservoir's repetitions do not count."""
    left_out: int = 0
    """Samples of files that could not be read, or that a stream lacked."""
    weightless: int = 0
    """Samples of batches whose weights are all 0."""
    change: float = 0.0
    """The squared norm of the change of the weights."""
    started: float | None = None
    """Unix time."""
    seconds: float = 0.0
    files: Mapping[str, Any] | None = None
    """Counts of file reads, ``None`` for samples in memory."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Files that could not be read, with the reasons."""
    not_compiled: str | None = None
    """Why the network could not be compiled, once."""
    probabilities: bool = False
    """Whether the first outputs are probabilities, though the loss takes logits."""
    random_transform: bool = False
    """Whether the transform draws random numbers outside of training."""
    trace: bytes | None = None
    """The trace of ``torch.profiler``, compressed JSON."""

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is empty: the coordinator reads thousands of them."""
        return {name: value for name, value in vars(self).items() if value}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(vars(Measured()) | state)
