"""What tensors of networks have besides values: attributes, and hooks of their gradients.

``copy.deepcopy`` drops both, and pickle the hooks.
"""

import copy
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import nn

from compss_train._utils.private_names import hook_dicts, set_hook_dicts

TensorExtras: TypeAlias = tuple[dict[str, Any], tuple[Any, Any]]
"""The attributes of a tensor, and its hooks."""


def extras_of(tensor: torch.Tensor) -> TensorExtras:
    """Return what a tensor has; attributes only of torch's own classes.

    Others copy and pickle theirs themselves.
    """
    is_of_torch = type(tensor) in (torch.Tensor, nn.Parameter)
    return dict(vars(tensor)) if is_of_torch else {}, hook_dicts(tensor)


def give_extras(tensor: torch.Tensor, extras: TensorExtras) -> None:
    """Give a copy of a tensor what ``extras_of`` returned; attributes that it has stay."""
    attributes, hooks = extras
    for name, value in attributes.items():
        vars(tensor).setdefault(name, value)
    set_hook_dicts(tensor, hooks)


def extras_by_name(net: nn.Module) -> dict[str, TensorExtras]:
    """Return what the parameters and buffers of a network have, of those that have anything."""
    return {
        name: extras_of(tensor)
        for name, tensor in (*net.named_parameters(), *net.named_buffers())
        if vars(tensor) or any(hook_dicts(tensor))
    }


def give_by_name(net: nn.Module, extras: Mapping[str, TensorExtras]) -> None:
    """Give the parameters and buffers of a network's copy what ``extras_by_name`` returned."""
    tensors = dict([*net.named_parameters(), *net.named_buffers()])
    for name, each in extras.items():
        give_extras(tensors[name], each)


def deep_copied(net: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Return a network's deep copy, whose tensors have what those of the network have."""
    memo = {} if memo is None else memo
    copied = copy.deepcopy(net, memo)
    give_by_name(copied, copy.deepcopy(extras_by_name(net), memo))
    return copied
