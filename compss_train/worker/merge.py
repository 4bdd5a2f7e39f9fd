"""The last task of a synchronous merge, which computes the global parameters.

It returns the mean of the workers, or takes a step of an *outer optimizer* towards it:
the mean change of a round is the negative of a gradient (Reddi et al. 2021, "Adaptive federated
optimization"; DiLoCo, Douillard et al. 2023, arXiv 2311.08105).
"""

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from compss_train.model.compression import CompressedChange
from compss_train.model.optimizers import OptimizerFactory
from compss_train.model.parameters import Parameters, change, check_outer_step
from compss_train.model.training_spec import TensorNames
from compss_train.model.weighted_mean import PartialSum, mean
from compss_train.worker.optimizer_state import split_contribution


@dataclass(frozen=True, kw_only=True)
class MergeRule:
    """What the last task of a merge does with the mean of the workers."""

    names: TensorNames
    """The names of the network's tensors; buffers and frozen parameters are only averaged."""
    optimizer: OptimizerFactory | None = None
    """Makes the outer optimizer; ``None`` for the mean."""
    moments: bool = False
    """Whether the workers' optimizer states are averaged."""
    compressed: bool = False
    """Whether workers return compressed changes."""
    decay: float | None = None
    """The decay of the moving average of the parameters over merges; ``None`` for no average."""
    by_steps: bool = False
    """Whether workers return averages of the parameters by steps, which are merged, too."""

    @property
    def is_mean(self) -> bool:
        """Whether the last task returns only the mean, which a single worker's result is."""
        return len(self.result_names) == 2 and not self.compressed

    @property
    def result_names(self) -> tuple[str, ...]:
        """The names of what ``merge_results`` returns.

        Those after the first two are fields of ``MergeState``.
        """
        names = ["parameters", "measured"]
        if self.moments:
            names.append("moments")
        if self.optimizer is not None:
            names.append("outer")
        if self.decay is not None or self.by_steps:
            names.append("averaged")
        return tuple(names)


def merge_results(
    items: Sequence[PartialSum],
    rule: MergeRule,
    base: Parameters,
    outer: dict[str, Any] | None = None,
    averaged: Parameters | None = None,
    moments: Parameters | None = None,
) -> tuple[Any, ...]:
    """Return the global parameters after a merge, and what else ``rule.result_names`` has.

    ``items`` are the workers' results, or sums of them, in worker order. ``base`` are the global
    parameters at the start of the round, ``outer``, ``averaged`` and ``moments`` the values that
    the last merge returned, ``None`` before the first. Raises ``DivergedError`` if a step leads to
    NaN or infinity.
    """
    initial = {**base, **(moments or {})}
    parameters, moments, averaged_by_steps = split_contribution(dict(mean(items, initial)))
    # No momentum without samples.
    if rule.optimizer is not None and any(item.count for item in items):
        parameters, outer = _step(rule, rule.optimizer, base, parameters, outer)
    if rule.by_steps:
        averaged = {**parameters, **averaged_by_steps}
    if rule.decay is not None:
        averaged = _moving_average(averaged, parameters, rule.decay)
    results = {
        "parameters": parameters,
        "measured": [measured for item in items for measured in item.measured],
        "moments": moments,
        "outer": outer,
        "averaged": averaged,
    }
    return tuple(results[name] for name in rule.result_names)


def rebased(
    item: PartialSum, base: Parameters, current: Parameters, buffers: Collection[str]
) -> PartialSum:
    """Return what a worker would have trained with its changes from ``current``, not ``base``.

    Statistics in ``buffers``, integers and optimizer states stay as they are; compressed changes
    need no base.
    """
    values = dict(item.values)
    for name, array in item.values.items():
        if isinstance(array, CompressedChange) or array.dtype.kind not in "fc":
            continue
        if name in base and name not in buffers:
            moved = np.asarray(change(base[name], array) + current[name])
            values[name] = moved.astype(array.dtype, copy=False)
    return replace(item, values=values)


def _step(
    rule: MergeRule,
    factory: OptimizerFactory,
    base: Parameters,
    mean: Parameters,
    saved: dict[str, Any] | None,
) -> tuple[Parameters, dict[str, Any]]:
    """Return the parameters after a step from ``base``, and the state of the optimizer."""
    weights = {
        name: nn.Parameter(torch.from_numpy(_wide(base[name]))) for name in rule.names.weights
    }
    for name, weight in weights.items():
        # Numpy makes numbers of scalars.
        weight.grad = torch.from_numpy(np.asarray(_wide(base[name]) - mean[name]))
    optimizer = factory(weights.values())
    # The state may be that of another fit's outer optimizer.
    if saved is not None and saved["kind"] == _kind(optimizer):
        state = copy.deepcopy(saved["state"])  # optimizers update loaded tensors in place
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
    optimizer.step()
    stepped = {
        name: _relative_to_mean(weight.detach().numpy(), base[name], mean[name])
        for name, weight in weights.items()
    }
    check_outer_step(stepped, base, mean)
    parameters = {name: stepped.get(name, array) for name, array in mean.items()}
    return parameters, {"kind": _kind(optimizer), "state": optimizer.state_dict()["state"]}


def _wide(array: NDArray[Any]) -> NDArray[Any]:
    """Return a copy in at least single precision."""
    return array.astype(np.result_type(array.dtype, np.float32))


def _relative_to_mean(
    stepped: NDArray[Any], base: NDArray[Any], mean: NDArray[Any]
) -> NDArray[Any]:
    """Return the stepped values, computed as mean - (base - gradient - stepped).

    The bracket is the difference from plain SGD with a learning rate of 1, whose result is the
    mean: computed this way, it is exactly the mean, without the rounding of base - (base - mean).
    """
    wide = _wide(base)
    difference = wide - (wide - mean)
    difference -= stepped
    return np.asarray(mean - difference).astype(mean.dtype, copy=False)


def _kind(optimizer: torch.optim.Optimizer) -> str:
    """Return what determines the structure of the state: the class, and options such as amsgrad."""
    ignored = {"params", "lr", "foreach", "fused", "capturable", "differentiable"}
    enabled = [
        name
        for name, value in optimizer.param_groups[0].items()
        if name not in ignored and not torch.is_tensor(value) and value
    ]
    return " ".join([type(optimizer).__name__, *enabled])


def _moving_average(
    averaged: Parameters | None, parameters: Parameters, decay: float
) -> Parameters:
    """Return decay · averaged + (1 - decay) · parameters; integers are the newest."""
    if averaged is None:
        return parameters
    moved = dict(parameters)
    for name, array in parameters.items():
        if array.dtype.kind in "fc":
            average = np.asarray(decay * averaged[name] + (1 - decay) * array)
            moved[name] = average.astype(array.dtype)
    return moved
