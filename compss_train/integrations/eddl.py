"""EDDL's names and numbers, for networks of torch: what ``dislib.eddl`` does beyond its calls of EDDL.

Scripts for ``dislib.eddl`` end their networks in a softmax, leave the optimizers' numbers to dislib, and hold
parameters as one list of arrays for each layer. docs/from-dislib.md lists what is the same and what is not.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from compss_train._utils.validation import warn_user
from compss_train.model.losses import LOSSES, BatchFunction, categorical_cross_entropy
from compss_train.model.parameters import to_array

Layers: TypeAlias = NDArray[np.object_]
"""The parameters of each layer, a list of arrays: ``layers[0]`` may be ``[weight, bias]``, ``layers[1]`` ``[]``."""

OPTIMIZER_DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "adam": {"epsilon": 1e-6},
    "rmsprop": {"rho": 0.9, "epsilon": 1e-5},
    "adagrad": {"epsilon": 1e-5},
    "adamax": {"epsilon": 1e-5},
    "adadelta": {"rho": 0.9, "epsilon": 1e-5},
    "nadam": {"epsilon": 1e-5, "schedule_decay": 0.0},
}
"""The numbers that dislib gives EDDL's optimizers where the dict has none, and torch has others."""

EDDL_LOSSES: Mapping[str, BatchFunction] = {
    **LOSSES,
    **dict.fromkeys(("cross_entropy", "ce", "softmax_cross_entropy"), categorical_cross_entropy),
}
"""The losses by name, all cross entropies of probabilities: in EDDL the network applies the softmax."""


def with_defaults(optimizer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dict of an optimizer with dislib's numbers where it has none; ``TypeError`` for anything else."""
    if not isinstance(optimizer, Mapping):
        raise TypeError(f'optimizer={optimizer!r}: give a dict, for example {{"optimizer": "sgd", "lr": 0.01}}')
    return {**OPTIMIZER_DEFAULTS.get(str(optimizer.get("optimizer")), {}), **optimizer}


def warn_of_weight_decay(optimizer: Mapping[str, Any]) -> None:
    """Warn of a weight decay, which is not applied by EDDL, but changes the learning rate of dislib."""
    if decay := optimizer.get("weight_decay"):
        warn_user(
            f"weight_decay={decay} is torch's here; EDDL's optimizers ignore it, and dislib divides the learning "
            f"rate by {1 + decay} from the third epoch of a fit on. For that, leave it out of the dict and give "
            f"build(..., schedule=lambda epoch: 1 if epoch < 2 else 1 / {1 + decay})"
        )


def scaled(batch: torch.Tensor) -> torch.Tensor:
    """Return a batch of x in float32 and divided by 255, as dislib's tasks divide each block."""
    return batch.float() / 255


def layers_of(net: nn.Module) -> Layers:
    """Return the parameters and buffers of each layer of a network, copies of the arrays, in torch's shapes."""
    layers = list(_layers(net))
    result = np.empty(len(layers), dtype=object)
    for number, tensors in enumerate(layers):
        result[number] = [np.array(to_array(name, tensor)) for name, tensor in tensors.items()]
    return result


def load_layers(net: nn.Module, layers: Any) -> None:
    """Copy the arrays of ``layers_of`` into a network; raise ``ValueError`` if their numbers or shapes differ."""
    own = list(_layers(net))
    shapes = [[tuple(tensor.shape) for tensor in tensors.values()] for tensors in own]
    given = [[np.shape(array) for array in layer] for layer in layers]
    if given != shapes:
        raise ValueError(f"the layers have arrays of shapes {given}, but those of the network {shapes}")
    with torch.no_grad():
        for tensors, layer in zip(own, layers, strict=True):
            for tensor, array in zip(tensors.values(), layer, strict=True):
                tensor.copy_(torch.from_numpy(np.array(array)))


def _layers(net: nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Iterate over the tensors of each layer: a module without children, or with tensors of its own."""
    for module in net.modules():
        own = {name: tensor for name, tensor in module.state_dict().items() if "." not in name}
        if own or not any(True for _ in module.children()):
            yield own
