"""``BoundOptimizer``: an optimizer that was made over a network's own parameters."""

import copy
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import nn

from compss_train._utils.validation import warn_user


@dataclass(frozen=True)
class BoundOptimizer:
    """An optimizer over a network's parameters, from which those of its copies are made.

    They have its groups and options, but not its state. It is pickled and copied together with the
    network, so that ``parameters`` stay those of the network's copy.
    """

    kind: type[torch.optim.Optimizer]
    groups: list[dict[str, Any]]
    """The options of each group."""
    attributes: dict[str, Any] = field(repr=False)
    parameters: list[nn.Parameter] = field(repr=False)
    """The parameters of the network, in its order."""

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer, net: nn.Module) -> Self:
        """Return an optimizer over parameters of ``net``; raise ``ValueError`` for others."""
        if not is_over(optimizer, net):
            raise ValueError(
                f"the {type(optimizer).__name__} has other parameters than those of the network, "
                "or none; make it from net.parameters(), with the same net as in build"
            )
        if optimizer.state:
            warn_user(
                f"the {type(optimizer).__name__} has already taken steps: its groups and options "
                "are used, but not its momentum and counts"
            )
        groups = [
            {name: option for name, option in group.items() if name != "params"}
            for group in optimizer.param_groups
        ]
        attributes = {
            name: value
            for name, value in vars(optimizer).items()
            if name != "step" and "hook" not in name
        }
        attributes["state"] = defaultdict(dict)
        return cls(
            type(optimizer), groups, attributes=attributes, parameters=list(net.parameters())
        )

    def of_module(self, net: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer over the parameters of ``net``, a copy of the network."""
        pairs = zip(self.parameters, net.parameters(), strict=True)
        copies = {id(parameter): copied for parameter, copied in pairs}
        optimizer = self.kind.__new__(self.kind)
        optimizer.__setstate__(copy.deepcopy(self.attributes, copies))
        return optimizer


def is_over(optimizer: torch.optim.Optimizer, net: nn.Module) -> bool:
    """Return whether an optimizer has parameters, and only of this network."""
    of_network = {id(parameter) for parameter in net.parameters()}
    stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return bool(stepped) and stepped <= of_network
