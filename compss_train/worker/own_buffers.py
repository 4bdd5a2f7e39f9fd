"""A worker's own buffers: those that are not in the network's state_dict (``persistent=False``).

They are not merged and not part of the global parameters. Each worker keeps its own from round to round, as the
model of a plain loop does; a new worker begins with those of the network that was built.
"""

from collections.abc import Mapping

import torch
from torch import nn


def changed_buffers(net: nn.Module, before: nn.Module) -> dict[str, torch.Tensor] | None:
    """Return copies on the CPU of the own buffers that differ from those of ``before``, ``None`` if none do.

    Constants, such as masks, are therefore not kept; nor are sparse tensors.
    """
    initial = _own_buffers(before)
    changed = {name: buffer for name, buffer in _own_buffers(net).items() if not _equal(initial.get(name), buffer)}
    return {name: buffer.detach().cpu().clone() for name, buffer in changed.items()} or None


def restore_buffers(net: nn.Module, saved: Mapping[str, torch.Tensor] | None, device: str) -> None:
    """Set own buffers of a network on ``device`` to copies of saved ones; names that it lacks are left out.

    A buffer of the same shape and dtype keeps its memory, so that what shares it still does.
    """
    modules = dict(net.named_modules(remove_duplicate=False)) if saved else {}
    for name, value in (saved or {}).items():
        owner, _, own = name.rpartition(".")
        if owner not in modules or not hasattr(modules[owner], own):
            continue
        buffer = getattr(modules[owner], own)
        if buffer is not None and (buffer.shape, buffer.dtype) == (value.shape, value.dtype):
            buffer.copy_(value)
        else:
            setattr(modules[owner], own, value.to(device, copy=True))


def _own_buffers(net: nn.Module) -> dict[str, torch.Tensor]:
    buffers = dict(net.named_buffers(remove_duplicate=False))
    if not buffers:
        return {}
    stored = {id(tensor) for tensor in net.state_dict(keep_vars=True).values()}
    dense = {name: buffer for name, buffer in buffers.items() if buffer.layout == torch.strided}
    return {name: buffer for name, buffer in dense.items() if id(buffer) not in stored}


def _equal(before: torch.Tensor | None, after: torch.Tensor) -> bool:
    if before is None or (before.shape, before.dtype) != (after.shape, after.dtype):
        return False
    return torch.equal(before.cpu(), after.detach().cpu())
