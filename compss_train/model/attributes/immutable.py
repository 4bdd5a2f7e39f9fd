"""``ImmutableAttributes``: a fast comparison of objects that hold immutable values only."""

from collections.abc import Mapping
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from compss_train._utils.private_names import held_by, hook_dicts, hooks_of
from compss_train.model.attributes.objects import (
    MODULE_ATTRIBUTES,
    NAMED,
    is_foreign,
    slots_of,
)
from compss_train.model.attributes.plain_values import SCALARS
from compss_train.model.attributes.reader import NETWORK
from compss_train.model.copies import filled_cells, has_state


class ImmutableAttributes:
    """The attributes of objects that hold immutable values only, which are compared quickly.

    ``hold`` is ``False`` if the objects have any others, whose values may change unseen.
    """

    def __init__(self, roots: Mapping[str, Any]) -> None:
        self.hold = True
        self._modules: list[tuple[int, list[tuple[str, Any]], list[bool]]] = []
        """For each module the number of its attributes, those that are not torch's, and which of
        its tensors require gradients.
        """
        self._objects: dict[str, dict[str, Any]] = {}
        """What each other root holds, if it holds anything."""
        for name, root in roots.items():
            if isinstance(root, nn.Module):
                self._add(root, is_network=name == NETWORK)
                continue
            values = _held_by_root(root)
            if values is None or not all(map(_is_immutable, values.values())):
                self.hold = False
            elif values:
                self._objects[name] = values

    def _add(self, root: nn.Module, *, is_network: bool) -> None:
        for module in root.modules():
            attributes = vars(module)
            names = [name for name in attributes if name not in MODULE_ATTRIBUTES]
            values = [(name, attributes[name]) for name in names]
            if not all(_is_immutable(value) for _, value in values):
                self.hold = False
            parameters, buffers, _ = held_by(module)
            tensors = [*filter(torch.is_tensor, (*parameters.values(), *buffers.values()))]
            flags = [tensor.requires_grad for tensor in tensors]
            self._modules.append((len(attributes), values, flags))
            if hooks_of(module) or (not is_network and (parameters or buffers)):
                self.hold = False
            if any(vars(tensor) or any(hook_dicts(tensor)) for tensor in tensors):
                self.hold = False

    def are_in(self, roots: Mapping[str, Any]) -> bool:
        """Return whether a copy of the objects has the same attributes, and no others."""
        for root_name, before in self._objects.items():
            held = _held_by_root(roots[root_name])
            if held is None or held.keys() != before.keys():
                return False
            if any(_differ(held[name], value) for name, value in before.items()):
                return False
        expected = iter(self._modules)
        for root in roots.values():
            if not isinstance(root, nn.Module):
                continue
            for module in root.modules():
                attributes = vars(module)
                count, values, flags = next(expected, (-1, [], []))
                if len(attributes) != count or hooks_of(module):
                    return False
                parameters, buffers, _ = held_by(module)
                tensors = [*filter(torch.is_tensor, (*parameters.values(), *buffers.values()))]
                if [tensor.requires_grad for tensor in tensors] != flags:
                    return False
                if any(vars(tensor) or any(hook_dicts(tensor)) for tensor in tensors):
                    return False
                if any(_differ(attributes.get(name), value) for name, value in values):
                    return False
        return next(expected, None) is None


def _held_by_root(root: Any) -> dict[str, Any] | None:
    """Return what a function, or an object of a plain class, holds; ``None`` for others."""
    if isinstance(root, FunctionType):
        if not has_state(root):
            return {}
        return {
            **filled_cells(root),
            **vars(root),
            "__defaults__": root.__defaults__,
            "__kwdefaults__": root.__kwdefaults__,
        }
    if isinstance(root, NAMED):
        return {}
    if isinstance(root, MethodType | partial) or slots_of(type(root)):
        return None
    return (
        dict(vars(root))
        if type(root).__dictoffset__ and not is_foreign(type(root).__module__)
        else None
    )


def _differ(new: Any, value: Any) -> bool:
    return new is not value and (type(new) is not type(value) or new != value)


def _is_immutable(value: Any) -> bool:
    if isinstance(value, FunctionType):
        return not has_state(value) or is_foreign(value.__module__)
    if type(value) in (tuple, torch.Size):
        return all(map(_is_immutable, value))
    return isinstance(value, (*SCALARS, *NAMED, torch.dtype, torch.device, bytes))
