"""The optimizers of a network: one for all of it, one for each of several modules, or in groups.

A network may have several optimizers, for GANs and other steps that take turns; and parts of it may
have options of their own. Parameters that are frozen when an optimizer is made are left out: it
would keep no state for them.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn

from compss_train.model.bound_optimizer import BoundOptimizer, is_over
from compss_train.model.joined_optimizer import JoinedOptimizer
from compss_train.model.lightning_style import ConfiguredOptimizer
from compss_train.model.optimizers import (
    BETAS,
    OptimizerFactory,
    OptimizerSpec,
    in_torch,
    optimizer_factory,
)

Groups = Mapping[str, Mapping[str, Any]]
"""Options by patterns of dotted names, as ``"layer4.*"``, or by their prefixes, as ``"layer4"``."""


def trainable(net: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the names and values of the parameters that are not frozen."""
    return [
        (name, parameter) for name, parameter in net.named_parameters() if parameter.requires_grad
    ]


@dataclass(frozen=True)
class GroupedOptimizer:
    """Makes an optimizer whose groups of parameters have options of their own."""

    factory: Callable[[Any], torch.optim.Optimizer]
    groups: Groups
    """In torch's names of options. Where patterns overlap, later ones win."""

    def of_module(self, net: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer.

        Raises ``ValueError`` for a pattern that matches no parameter, and for an unknown option.
        """
        groups = [
            self._group(patterns, parameters)
            for patterns, parameters in self._members(net).items()
            if parameters
        ]
        optimizer = self.factory(groups)
        for options in self.groups.values():
            for option in options:
                if option not in optimizer.defaults:
                    known = ", ".join(optimizer.defaults)
                    raise ValueError(
                        f"groups has the option {option!r}; {type(optimizer).__name__} has {known}"
                    )
        return optimizer

    def _members(self, net: nn.Module) -> dict[tuple[str, ...], list[nn.Parameter]]:
        """Return the trained parameters by all patterns that they match."""
        members: dict[tuple[str, ...], list[nn.Parameter]] = {(): []}
        for pattern in self.groups:  # so that groups have the order of the patterns
            members.setdefault((pattern,), [])
        parameters = trainable(net)
        unused = dict.fromkeys(self.groups)
        for name, parameter in parameters:
            patterns = tuple(pattern for pattern in self.groups if matches(name, pattern))
            members.setdefault(patterns, []).append(parameter)
            for pattern in patterns:
                unused.pop(pattern, None)
        if unused:
            names = ", ".join(name for name, _ in parameters[:5])
            pattern = next(iter(unused))
            if any(matches(name, pattern) for name, _ in net.named_parameters()):
                raise ValueError(
                    f"groups has {pattern!r}, which matches frozen parameters only: leave it out, "
                    f"and let the callback Unfreeze({pattern!r}, epoch=..., factor=0.1) train them "
                    "from some epoch on, at a tenth of the first group's learning rate; or set "
                    "requires_grad"
                )
            raise ValueError(
                f"groups has {pattern!r}, which matches no trained parameter; the first "
                f"are {names}; give a prefix of dotted names, or a pattern such as 'layer4.*' or "
                "'*.bias'"
            )
        return members

    def _group(self, patterns: Sequence[str], parameters: list[nn.Parameter]) -> dict[str, Any]:
        """Return a group as torch takes it, with the options of its patterns."""
        group: dict[str, Any] = {"params": parameters}
        if patterns:
            group["name"] = "+".join(pattern.strip("*.") or pattern for pattern in patterns)
        for pattern in patterns:
            group.update(self.groups[pattern])
        return group


def matches(name: str, pattern: str) -> bool:
    """Return whether a dotted name matches a pattern, or begins with it as with a module's name."""
    return fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")


class SeveralOptimizers:
    """Makes one optimizer for each of several submodules."""

    def __init__(self, factories: Mapping[str, "NetOptimizer"]) -> None:
        self.factories = dict(factories)

    def of_module(self, net: nn.Module) -> JoinedOptimizer:
        """Return the optimizers, joined.

        Raises ``ValueError`` for parameters that two of them would train.
        """
        modules = dict(net.named_modules())
        owners: dict[int, str] = {}
        for name in self.factories:
            for parameter in modules[name].parameters():
                owner = owners.setdefault(id(parameter), name)
                if owner != name:
                    raise ValueError(
                        f"the optimizers {owner!r} and {name!r} would train the same parameters"
                    )
        optimizers = {
            name: make_optimizer(factory, modules[name]) for name, factory in self.factories.items()
        }
        for name, optimizer in optimizers.items():
            for number, group in enumerate(optimizer.param_groups):
                has_own_name = number > 0 or "name" in group
                group["name"] = f"{name}/{group.get('name', number)}" if has_own_name else name
        return JoinedOptimizer(optimizers)

    def __repr__(self) -> str:
        return repr(self.factories)


_OfModule: TypeAlias = SeveralOptimizers | ConfiguredOptimizer | GroupedOptimizer | BoundOptimizer

NetOptimizer: TypeAlias = OptimizerFactory | _OfModule
"""Makes an optimizer, of parameters or of a module: ``make_optimizer`` calls it."""


def make_optimizer(factory: NetOptimizer, net: nn.Module) -> torch.optim.Optimizer:
    """Return a new optimizer of a network or of one of its modules, without frozen parameters."""
    if isinstance(factory, _OfModule):
        return factory.of_module(net)
    named: Any = trainable(net)
    function = factory.func if isinstance(factory, partial) else factory
    is_of_torch = isinstance(function, type) and function.__module__.startswith("torch.optim.")
    takes_names = False
    # To inspect those of torch would take a tenth of the time of a small task.
    if not is_of_torch:
        with suppress(TypeError, ValueError):  # of a callable that is not written in Python
            takes_names = "named_parameters" in inspect.signature(factory).parameters
    return factory(named if takes_names else [parameter for _, parameter in named])


def net_optimizer(
    spec: OptimizerSpec | Mapping[str, OptimizerSpec], net: nn.Module
) -> NetOptimizer:
    """Return the factory of one optimizer, or of several by the names of submodules.

    Raises the errors of ``optimizer_factory``, and ``ValueError`` for names that are not submodules
    of ``net``.
    """
    if isinstance(spec, torch.optim.Optimizer):
        return BoundOptimizer.of(spec, net)
    if isinstance(spec, Mapping) and "optimizer" in spec:
        return _from_dict(spec, net)
    specs: Mapping[str, Any] = spec if isinstance(spec, Mapping) else {}
    are_optimizers = all(
        isinstance(value, Mapping | torch.optim.Optimizer) or callable(value)
        for value in specs.values()
    )
    if not specs or not are_optimizers:
        return optimizer_factory(spec)
    modules = dict(net.named_modules())
    for name in specs:
        if not name or name not in modules:
            children = ", ".join(child for child, _ in net.named_children())
            raise ValueError(
                f"optimizer= has {name!r}, which is not a module of the network; its modules "
                f"are {children}"
            )
    return SeveralOptimizers(
        {name: net_optimizer(value, modules[name]) for name, value in specs.items()}
    )


def _from_dict(spec: Mapping[str, Any], net: nn.Module) -> NetOptimizer:
    """Return the factory of a dict with ``"optimizer"``.

    It may have ``"groups"``, options by pattern, or ``"params"``, groups as torch takes them.
    """
    common = {key: value for key, value in spec.items() if key not in ("groups", "params")}
    factory = optimizer_factory(common)
    if "params" in spec:
        return BoundOptimizer.of(factory(spec["params"]), net)
    groups = spec.get("groups")
    if groups is None:
        return factory
    if not isinstance(groups, Mapping) or not all(
        isinstance(options, Mapping) for options in groups.values()
    ):
        raise TypeError(
            f'groups={groups!r}: give options by pattern, such as {{"layer4.*": {{"lr": 0.01}}}}'
        )
    betas = getattr(factory, "keywords", {}).get("betas", BETAS)
    translated = {
        pattern: in_torch(spec["optimizer"], options, betas) for pattern, options in groups.items()
    }
    return GroupedOptimizer(factory, translated)


def bound_to_copy(factory: NetOptimizer, net: nn.Module, copied: nn.Module) -> NetOptimizer:
    """Return the factory with which ``copied``, a copy of ``net``, has its own optimizers.

    Factories that make optimizers of ``net`` itself are replaced.
    """
    if isinstance(factory, SeveralOptimizers):
        modules = dict(net.named_modules())
        copied_modules = dict(copied.named_modules())
        return SeveralOptimizers(
            {
                name: bound_to_copy(member, modules[name], copied_modules[name])
                for name, member in factory.factories.items()
            }
        )
    if isinstance(factory, ConfiguredOptimizer | GroupedOptimizer):
        return factory
    optimizer = make_optimizer(factory, copied)
    if isinstance(factory, BoundOptimizer):
        return BoundOptimizer.of(optimizer, copied)
    # A function that closes over the network.
    if isinstance(optimizer, torch.optim.Optimizer) and is_over(optimizer, net):
        optimizer = BoundOptimizer.of(optimizer, net).of_module(copied)
        return BoundOptimizer.of(optimizer, copied)
    return factory
