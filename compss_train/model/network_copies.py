"""Copies of networks that share nothing with the original, and that can be pickled.

torch refuses to pickle parametrized modules (``weight_norm``, ``spectral_norm``, ``orthogonal`` and others of
``torch.nn.utils.parametrizations``), whose class it makes when their first parametrization is registered. The
copies have classes that are made again where they are unpickled. Tensors that a module has computed and keeps as an
attribute, as the older ``torch.nn.utils.weight_norm`` does, are copied without their graph.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize


def copy_network(net: nn.Module) -> nn.Module:
    """Return a deep copy."""
    attributes = (value for module in net.modules() for value in vars(module).values())
    computed = (value for value in attributes if isinstance(value, torch.Tensor) and not value.is_leaf)
    own = copy.deepcopy(net, {id(tensor): tensor.detach().clone() for tensor in computed})
    for module in own.modules():
        if parametrize.is_parametrized(module):
            module.__class__ = _picklable(type(module))
    return own


def _picklable(parametrized: type) -> type:
    """Return a class like this one of a parametrized module, whose objects can be pickled."""
    members = {name: value for name, value in vars(parametrized).items() if name != "__getstate__"}
    return type(parametrized.__name__, parametrized.__bases__, {**members, "__reduce_ex__": _reduce})


def _reduce(module: nn.Module, protocol: int) -> tuple[Any, ...]:
    plain: Any = parametrize.type_before_parametrizations(module)
    parametrizations: Any = module.parametrizations
    return _new_parametrized, (plain, [*parametrizations]), plain.__getstate__(module)


def _new_parametrized(plain: type[nn.Module], names: Sequence[str]) -> nn.Module:
    """Return an object without attributes, as unpickling needs it, of the class of a parametrized module."""
    module = plain.__new__(plain)
    parametrize._inject_new_class(module)
    for name in names:
        parametrize._inject_property(module, name)
    module.__class__ = _picklable(type(module))
    return module
