"""The networks that estimators train: a perceptron by default, a module, or what a function makes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from compss_train.data.block import Block
from compss_train.estimators.constructor import NetworkFactory
from compss_train.validation import check_count
from compss_train.worker.random_state import random_state


def make_network(
    net: nn.Module | NetworkFactory | None, sample: Block, outputs: int, hidden: Sequence[int], seed: int
) -> nn.Module:
    """Return the network to begin with for such a sample, shape (1, ...): ``net`` itself where it is a module.

    Else its parameters are drawn as after ``torch.manual_seed(seed)``; the caller's random numbers are not touched.
    """
    if isinstance(net, nn.Module):
        return net
    if net is not None and not callable(net):
        raise TypeError(
            f"net={net!r}: give a torch.nn.Module, a function of (inputs, outputs) that returns one, or None for "
            "a perceptron with the hidden layers of hidden="
        )
    inputs = sample.shape[1]
    with random_state(seed, "cpu"):
        if net is not None:
            return net(inputs, outputs)
        made = perceptron(inputs, outputs, hidden)
    return made.double() if str(sample.dtype).endswith("float64") else made


def perceptron(inputs: int, outputs: int, hidden: Sequence[int] = (100,)) -> nn.Module:
    """Return linear layers with ReLU between them; ``hidden`` has the width of each hidden layer."""
    widths = [inputs, *(check_count("hidden", width) for width in _listed(hidden))]
    layers = [layer for before, width in pairwise(widths) for layer in (nn.Linear(before, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))


def _listed(hidden: object) -> Sequence[object]:
    if not isinstance(hidden, list | tuple):
        raise TypeError(f"hidden={hidden!r}: give the widths of the hidden layers, for example (100,)")
    return hidden
