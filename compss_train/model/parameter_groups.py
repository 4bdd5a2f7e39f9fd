"""Optimizers of named parameters: options for a part of a network, and optimizers over a network of the user's.

Parameters that are frozen when an optimizer is made are left out: it would keep no state for them.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Self

import torch
from torch import nn

from compss_train._utils.validation import warn_user

Groups = Mapping[str, Mapping[str, Any]]
"""Options by patterns of dotted names, such as ``"layer4.*"``, or by prefixes, such as ``"layer4"``."""


def trainable(net: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the names and values of the parameters that are not frozen."""
    return [(name, parameter) for name, parameter in net.named_parameters() if parameter.requires_grad]


def rates(groups: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the learning rate of the first group as ``lr``, and those of others and named ones as ``lr/NAME``."""
    found: dict[str, float] = {}
    for number, group in enumerate(groups):
        found.setdefault("lr", float(group["lr"]))
        if number or "name" in group:
            found[f"lr/{group.get('name', number)}"] = float(group["lr"])
    return found


@dataclass(frozen=True)
class GroupedOptimizer:
    """Makes an optimizer whose groups of parameters have options of their own."""

    factory: Callable[[Any], torch.optim.Optimizer]
    groups: Groups
    """In torch's names of options. Where patterns overlap, later ones win."""

    def of_module(self, net: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer; raise ``ValueError`` for a pattern without a parameter, and unknown options."""
        members: dict[tuple[str, ...], list[nn.Parameter]] = {(): []}
        for pattern in self.groups:  # so that groups have the order of the patterns
            members.setdefault((pattern,), [])
        for name, parameter in trainable(net):
            patterns = tuple(pattern for pattern in self.groups if matches(name, pattern))
            members.setdefault(patterns, []).append(parameter)
        used = {pattern for patterns, parameters in members.items() if parameters for pattern in patterns}
        if unused := [pattern for pattern in self.groups if pattern not in used]:
            some = ", ".join(name for name, _ in trainable(net)[:5])
            raise ValueError(
                f"groups has {unused[0]!r}, which matches no trained parameter; the first are {some}; give a "
                "prefix of dotted names, or a pattern such as 'layer4.*' or '*.bias'"
            )
        made = [
            {"params": own, **({"name": "+".join(each.strip("*.") or each for each in key)} if key else {})}
            | self._options(key)
            for key, own in members.items()
            if own
        ]
        optimizer = self.factory(made)
        for option in (option for options in self.groups.values() for option in options):
            if option not in optimizer.defaults:
                known = ", ".join(optimizer.defaults)
                raise ValueError(f"groups has the option {option!r}; {type(optimizer).__name__} has {known}")
        return optimizer

    def _options(self, patterns: Iterable[str]) -> dict[str, Any]:
        return {name: value for pattern in patterns for name, value in self.groups[pattern].items()}


def matches(name: str, pattern: str) -> bool:
    """Return whether a dotted name matches a pattern, or begins with it as with a module's name."""
    return fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")


@dataclass(frozen=True)
class BoundOptimizer:
    """An optimizer over a network's parameters, to be copied for every copy of the network, without its state.

    It is pickled and copied together with the network, so that ``parameters`` stay those of the network's copy.
    """

    kind: type[torch.optim.Optimizer]
    groups: list[dict[str, Any]]
    """The options of each group."""
    attributes: dict[str, Any] = field(repr=False)
    parameters: list[nn.Parameter] = field(repr=False)
    """The parameters of the network, in its order."""

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer, net: nn.Module) -> Self:
        """Return an optimizer over the parameters of ``net``; raise ``ValueError`` for other parameters."""
        if not is_over(optimizer, net):
            raise ValueError(
                f"the {type(optimizer).__name__} has other parameters than those of the network, or none; make it "
                "from net.parameters(), with the same net as in build"
            )
        if optimizer.state:
            warn_user(
                f"the {type(optimizer).__name__} has already taken steps: its groups and options are used, but not "
                "its momentum and counts"
            )
        groups = [
            {name: each for name, each in group.items() if name != "params"} for group in optimizer.param_groups
        ]
        own = {name: each for name, each in vars(optimizer).items() if name != "step" and "hook" not in name}
        return cls(type(optimizer), groups, own | {"state": defaultdict(dict)}, list(net.parameters()))

    def of_module(self, net: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer over the parameters of ``net``, a copy of the network."""
        pairs = zip(self.parameters, net.parameters(), strict=True)
        made = self.kind.__new__(self.kind)
        made.__setstate__(copy.deepcopy(self.attributes, {id(own): new for own, new in pairs}))
        return made


def is_over(optimizer: torch.optim.Optimizer, net: nn.Module) -> bool:
    """Return whether an optimizer has parameters, and only of this network."""
    own = {id(parameter) for parameter in net.parameters()}
    given = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return bool(given) and all(id(parameter) in own for parameter in given)
