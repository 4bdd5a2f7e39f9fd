"""What a worker keeps from task to task: ``WorkerState``, and buffers that are its own.

A network's own buffers are those outside its state_dict (``persistent=False``). They are neither
merged nor part of the global parameters: each worker keeps them from round to round, like the model
in a plain loop; a new worker starts with the buffers of the network given to ``build``.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import Any, Self

import torch
from torch import nn

from compss_train._utils import PickledByFields
from compss_train.model.devices import RandomState, copy_into, to_host
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


@dataclass
class CarriedBuffer:
    """The state of a worker's buffer, which passes from task to task inside an epoch."""

    before: dict[str, Any] | None = None
    """The state before a task, which the task does not change."""
    after: dict[str, Any] | None = None
    """The state after a task; ``None`` for an empty buffer."""


def changed_buffers(
    net: nn.Module, before: nn.Module, kept: Collection[str] = ()
) -> dict[str, torch.Tensor] | None:
    """Return CPU copies of own buffers that differ from those of ``before``, or ``None``.

    Constants, such as masks, are therefore not kept; nor are sparse tensors. ``kept`` are the names
    of buffers in the state_dict that are the worker's own, too.
    """
    buffers = _own_buffers(net)
    if kept:
        buffers |= {name: value for name, value in net.named_buffers() if name in kept}
    if not buffers:
        return None
    initial = _own_buffers(before)
    changed = {}
    for name, new in zip(buffers, to_host(buffers.values()), strict=True):
        old = initial.get(name)
        if old is None or not _is_alike(old, new) or not torch.equal(old.cpu(), new):
            changed[name] = new.clone()
    return changed or None


def restore_buffers(net: nn.Module, saved: Mapping[str, torch.Tensor] | None, device: str) -> None:
    """Set a network's own buffers on ``device`` to copies of saved ones; unknown names are ignored.

    A buffer of the same shape and dtype keeps its memory, so that tensors sharing it continue to do
    so.
    """
    modules = dict(net.named_modules(remove_duplicate=False)) if saved else {}
    for name, value in (saved or {}).items():
        module_name, _, attribute = name.rpartition(".")
        module = modules.get(module_name)
        if module is None or not hasattr(module, attribute):
            continue
        buffer = getattr(module, attribute)
        if buffer is not None and _is_alike(buffer, value):
            copy_into(buffer, value)
        else:
            setattr(module, attribute, value.to(device, copy=True))


def _is_alike(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two tensors have the same shape and dtype."""
    return (first.shape, first.dtype) == (second.shape, second.dtype)


def _own_buffers(net: nn.Module) -> dict[str, torch.Tensor]:
    buffers = dict(net.named_buffers(remove_duplicate=False))
    if not buffers:
        return {}
    merged = {id(tensor) for tensor in net.state_dict(keep_vars=True).values()}
    return {
        name: buffer
        for name, buffer in buffers.items()
        if buffer.layout == torch.strided and id(buffer) not in merged
    }
