"""Optimizer states as named arrays, so that merging averages them like parameters (``optimizer_state="average"``).

Momentum buffers, Adam's moments and the numbers of steps have the names ``"optimizer state/0.exp_avg"``: the number
of the parameter and torch's name of the value.
"""

import copy
from typing import Any

import numpy as np
import torch
from torch import nn

from compss_train.model.optimizers import needs_closure
from compss_train.model.parameters import Parameters, to_array
from compss_train.model.several_optimizers import NetOptimizer, make_optimizer

_PREFIX = "optimizer state/"


def moments_of(optimizer: torch.optim.Optimizer) -> Parameters:
    """Return the tensors of the optimizer's state by name."""
    states = optimizer.state_dict()["state"]
    tensors = {
        f"{_PREFIX}{number}.{name}": value
        for number, state in states.items()
        for name, value in state.items()
        if value is not None
    }
    return {name: to_array(name, tensor) for name, tensor in tensors.items()}


def load_moments(optimizer: torch.optim.Optimizer, moments: Parameters) -> None:
    """Set the state of a new optimizer to copies of the arrays."""
    states: dict[int, dict[str, torch.Tensor]] = {}
    for name, array in moments.items():
        number, _, key = name.removeprefix(_PREFIX).partition(".")
        states.setdefault(int(number), {})[key] = torch.from_numpy(np.array(array))
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})


def split_moments(merged: Parameters) -> tuple[Parameters, Parameters]:
    """Return the parameters and the moments of arrays that contain both."""
    moments = {name: array for name, array in merged.items() if name.startswith(_PREFIX)}
    return {name: array for name, array in merged.items() if name not in moments}, moments


def check_averageable(net: nn.Module, factory: NetOptimizer) -> None:
    """Raise ``ValueError`` if the optimizer keeps anything but tensors, which cannot be averaged.

    A copy of the network makes one step with gradients of zero.
    """
    own = copy.deepcopy(net)
    for parameter in own.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    optimizer = make_optimizer(factory, own)
    try:
        optimizer.step(lambda: 0.0) if needs_closure(optimizer) else optimizer.step()
    except RuntimeError as error:
        raise ValueError(
            f"optimizer_state='average' needs an optimizer of dense gradients, but {type(optimizer).__name__} "
            f"says: {error}; take optimizer_state='keep' or 'reset', or another optimizer"
        ) from error
    for state in optimizer.state_dict()["state"].values():
        for name, value in state.items():
            if not isinstance(value, torch.Tensor | None):
                raise ValueError(
                    f"optimizer_state='average' averages tensors, but {type(optimizer).__name__} keeps "
                    f"{name!r} as {_kind(value)}; take optimizer_state='keep' or 'reset', or another optimizer"
                )


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"
