"""``ModelState``: what a model keeps besides its parameters, as plain values.

These are a network's own buffers, which are outside its state_dict (``persistent=False``), and the
attributes of all objects (``attributes``). They are neither merged nor part of the global
parameters: each worker keeps them from round to round, like the model in a plain loop. Where one
model stands for all, as in evaluation and in ``trainer.model()``, worker 0's are seen.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import torch
from torch import nn

from compss_train._utils.private_names import state_tensors
from compss_train.model.attributes.plain_values import is_kept_whole, references
from compss_train.model.attributes.reader import HOOKS, NETWORK, REQUIRES_GRAD, AttributeReader
from compss_train.model.attributes.writer import AttributeWriter
from compss_train.model.devices import copy_into, to_host

ModelState: TypeAlias = dict[str, Any]
"""The ``"buffers"`` by names, and the ``"attributes"`` by paths."""

_TRAINED_ONLY = ("optimizer.", "training_step.", "train_transform.")
"""How paths begin of what only training uses."""


def model_state(
    buffers: Mapping[str, torch.Tensor] | None,
    attributes: Mapping[str, Any] | None,
    *,
    steps: bool = False,
) -> ModelState | None:
    """Return what evaluation sees of a worker's buffers and attributes; ``None`` for nothing.

    With ``steps`` training steps are seen, too, as a validation step may be a method of the same
    object; so they are if anything else refers to what they hold.
    """
    everything = {
        path: value
        for path, value in (attributes or {}).items()
        if not path.startswith("optimizer.")
    }
    seen = everything
    if not steps:
        seen = {path: everything[path] for path in everything if not _is_trained_only(path)}
        if any(_is_trained_only(f"{path}.") for path in references(seen)):
            seen = everything
    if not seen and not buffers:
        return None
    return {"buffers": dict(buffers or {}), "attributes": seen}


def _is_trained_only(path: str) -> bool:
    return path.startswith(_TRAINED_ONLY) or path.endswith(REQUIRES_GRAD)


def of_network(state: ModelState, net: nn.Module) -> ModelState:
    """Return what belongs to the network alone, is not merged, and is whole without the rest."""
    merged = state_tensors(net).keys()
    buffers = {name: value for name, value in state["buffers"].items() if name not in merged}
    attributes = {
        path: value
        for path, value in state["attributes"].items()
        if path.startswith(f"{NETWORK}.")
        and not path.endswith((HOOKS, REQUIRES_GRAD))
        and is_kept_whole(value)
        and all(part.startswith(f"{NETWORK}.") for part in references({path: value}))
    }
    return {"buffers": buffers, "attributes": attributes}


def restore(
    state: ModelState, net: nn.Module, roots: Mapping[str, Any], device: str = "cpu"
) -> None:
    """Let a network and what is with it be in this state, on a device."""
    merged = state_tensors(net).keys()
    own = {name: value for name, value in state["buffers"].items() if name not in merged}
    restore_buffers(net, own, device)
    if state["attributes"]:
        AttributeWriter(AttributeReader(net, roots), device).set(state["attributes"])


def without_not_kept(state: ModelState) -> ModelState:
    """Return the state without attributes in which an object is not kept."""
    attributes = {
        path: value
        for path, value in state["attributes"].items()
        if is_kept_whole(value) and not path.endswith((HOOKS, REQUIRES_GRAD))
    }
    return {**state, "attributes": attributes}


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
    so; unless it has several names, with values of their own.
    """
    if not saved:
        return
    modules = dict(net.named_modules(remove_duplicate=False))
    names_of: defaultdict[int, list[str]] = defaultdict(list)
    for name, tensor in net.named_buffers(remove_duplicate=False):
        names_of[id(tensor)].append(name)
    for name, value in saved.items():
        module_name, _, attribute = name.rpartition(".")
        module = modules.get(module_name)
        if module is None or not hasattr(module, attribute):
            continue
        buffer = getattr(module, attribute)
        is_shared = all(
            other in saved and _is_alike(saved[other], value) and torch.equal(saved[other], value)
            for other in names_of[id(buffer)]
        )
        if buffer is not None and is_shared and _is_alike(buffer, value):
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
    merged = {id(tensor) for tensor in state_tensors(net).values()}
    return {
        name: buffer
        for name, buffer in buffers.items()
        if buffer.layout == torch.strided and id(buffer) not in merged
    }
