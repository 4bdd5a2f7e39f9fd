"""The optimizers of a network: one for all of it, one for each of several modules, or in groups.

A network may have several optimizers, for GANs and other steps that take turns; and parts of it may
have options of their own. Parameters that are frozen when an optimizer is made are left out: it
would keep no state for them.
"""

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache, partial
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
"""Options by patterns of dotted names, such as ``"layer4.*"``, or by prefixes, such as
``"layer4"``.
"""


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
        """Return the optimizer; raise ``ValueError`` for a pattern without a parameter, and unknown
        options.
        """
        members: dict[tuple[str, ...], list[nn.Parameter]] = {(): []}
        for pattern in self.groups:  # so that groups have the order of the patterns
            members.setdefault((pattern,), [])
        for name, parameter in trainable(net):
            patterns = tuple(pattern for pattern in self.groups if matches(name, pattern))
            members.setdefault(patterns, []).append(parameter)
        used = {
            pattern
            for patterns, parameters in members.items()
            if parameters
            for pattern in patterns
        }
        if unused := [pattern for pattern in self.groups if pattern not in used]:
            some = ", ".join(name for name, _ in trainable(net)[:5])
            raise ValueError(
                f"groups has {unused[0]!r}, which matches no trained parameter; the first are "
                f"{some}; give a prefix of dotted names, or a pattern such as 'layer4.*' or "
                "'*.bias'"
            )
        made = [
            {
                "params": own,
                **({"name": "+".join(each.strip("*.") or each for each in key)} if key else {}),
            }
            | {option: value for pattern in key for option, value in self.groups[pattern].items()}
            for key, own in members.items()
            if own
        ]
        optimizer = self.factory(made)
        for option in (option for options in self.groups.values() for option in options):
            if option not in optimizer.defaults:
                known = ", ".join(optimizer.defaults)
                raise ValueError(
                    f"groups has the option {option!r}; {type(optimizer).__name__} has {known}"
                )
        return optimizer


def matches(name: str, pattern: str) -> bool:
    """Return whether a dotted name matches a pattern, or begins with it as with a module's name."""
    return fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")


class SeveralOptimizers:
    """Makes one optimizer for each of several submodules."""

    def __init__(self, factories: Mapping[str, "NetOptimizer"]) -> None:
        self.factories = dict(factories)

    def of_module(self, net: nn.Module) -> "JoinedOptimizer":
        """Return the optimizers, joined; raise ``ValueError`` for parameters that two of them would
        train.
        """
        modules = dict(net.named_modules())
        owner: dict[int, str] = {}
        for name in self.factories:
            for parameter in modules[name].parameters():
                if (other := owner.setdefault(id(parameter), name)) != name:
                    raise ValueError(
                        f"the optimizers {other!r} and {name!r} would train the same parameters"
                    )
        made = {
            name: make_optimizer(factory, modules[name]) for name, factory in self.factories.items()
        }
        for name, optimizer in made.items():
            for number, group in enumerate(optimizer.param_groups):
                group["name"] = (
                    f"{name}/{group.get('name', number)}" if number or "name" in group else name
                )
        return JoinedOptimizer(made)

    def __repr__(self) -> str:
        return repr(self.factories)


_OfModule: TypeAlias = SeveralOptimizers | ConfiguredOptimizer | GroupedOptimizer | BoundOptimizer


NetOptimizer: TypeAlias = OptimizerFactory | _OfModule


def make_optimizer(factory: NetOptimizer, net: nn.Module) -> torch.optim.Optimizer:
    """Return a new optimizer of a network or of one of its modules; frozen parameters are left
    out.
    """
    if isinstance(factory, _OfModule):
        return factory.of_module(net)
    named: Any = trainable(net)
    made = factory.func if isinstance(factory, partial) else factory
    takes_names = False
    # To inspect the signature of torch's own optimizers would take a tenth of the time of a small
    # task.
    if not (isinstance(made, type) and made.__module__.startswith("torch.optim.")):
        with suppress(TypeError, ValueError):  # of a callable that is not written in Python
            takes_names = "named_parameters" in inspect.signature(factory).parameters
    return factory(named if takes_names else [parameter for _, parameter in named])


@lru_cache(maxsize=16)  # the inspection takes as long as a small layer
def needs_closure(step: Callable[..., Any]) -> bool:
    """Return whether the ``step`` of a class requires a closure that evaluates the loss, as that of
    LBFGS does.
    """
    _, *parameters = inspect.signature(step).parameters.values()
    return any(
        each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
        for each in parameters
    )


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
    given: Mapping[str, Any] = spec if isinstance(spec, Mapping) else {}
    several = (
        isinstance(each, Mapping | torch.optim.Optimizer) or callable(each)
        for each in given.values()
    )
    if not given or not all(several):
        return optimizer_factory(spec)
    modules = dict(net.named_modules())
    if unknown := [name for name in given if name not in modules or not name]:
        children = ", ".join(name for name, _ in net.named_children())
        raise ValueError(
            f"optimizer= has {unknown[0]!r}, which is not a module of the network; its modules "
            f"are {children}"
        )
    return SeveralOptimizers(
        {name: net_optimizer(each, modules[name]) for name, each in given.items()}
    )


def _from_dict(spec: Mapping[str, Any], net: nn.Module) -> NetOptimizer:
    """Return the factory of a dict with ``"optimizer"``, which may have ``"groups"`` or torch's
    ``"params"``.
    """
    plain = {key: value for key, value in spec.items() if key not in ("groups", "params")}
    factory = optimizer_factory(plain)
    groups = spec.get("groups")
    if "params" in spec:
        return BoundOptimizer.of(factory(spec["params"]), net)
    if groups is None:
        return factory
    if not isinstance(groups, Mapping) or not all(
        isinstance(each, Mapping) for each in groups.values()
    ):
        raise TypeError(
            f'groups={groups!r}: give options by pattern, such as {{"layer4.*": {{"lr": 0.01}}}}'
        )
    betas = getattr(factory, "keywords", {}).get("betas", BETAS)
    options = {
        pattern: in_torch(spec["optimizer"], given, betas) for pattern, given in groups.items()
    }
    return GroupedOptimizer(factory, options)


def bound_to_copy(factory: NetOptimizer, net: nn.Module, own: nn.Module) -> NetOptimizer:
    """Return the factory for ``own``, a copy of ``net``, where it makes optimizers over ``net``
    itself.
    """
    if isinstance(factory, SeveralOptimizers):
        modules = dict(net.named_modules())
        copies = dict(own.named_modules())
        parts = {
            name: bound_to_copy(each, modules[name], copies[name])
            for name, each in factory.factories.items()
        }
        return SeveralOptimizers(parts)
    if isinstance(factory, ConfiguredOptimizer | GroupedOptimizer):
        return factory
    made = make_optimizer(factory, own)
    if isinstance(factory, BoundOptimizer):
        return BoundOptimizer.of(made, own)
    # A function that closes over the network.
    if isinstance(made, torch.optim.Optimizer) and is_over(made, net):
        return BoundOptimizer.of(BoundOptimizer.of(made, net).of_module(own), own)
    return factory
