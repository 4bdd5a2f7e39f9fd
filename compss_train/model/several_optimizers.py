"""Several optimizers of one network: for GANs and other steps that take turns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import nn

from compss_train.model.optimizers import OptimizerFactory, OptimizerSpec, optimizer_factory


class ModuleOptimizer(ABC):
    """An optimizer that is made of a network, and not of its parameters alone."""

    @abstractmethod
    def of_module(self, net: nn.Module) -> torch.optim.Optimizer:
        """Return a new optimizer of the parameters of this network."""


NetOptimizer: TypeAlias = OptimizerFactory | ModuleOptimizer


def make_optimizer(factory: NetOptimizer, net: nn.Module) -> torch.optim.Optimizer:
    """Return a new optimizer of a network."""
    return factory.of_module(net) if isinstance(factory, ModuleOptimizer) else factory(net.parameters())


def net_optimizer(spec: OptimizerSpec | Mapping[str, OptimizerSpec], net: nn.Module) -> NetOptimizer:
    """Return the factory of one optimizer, or of several by the names of submodules.

    Raises as ``optimizer_factory``, and ``ValueError`` for names that are no submodules of ``net``.
    """
    if not isinstance(spec, Mapping) or "optimizer" in spec or not spec:
        return optimizer_factory(spec)
    if not all(isinstance(each, Mapping) or callable(each) for each in spec.values()):
        return optimizer_factory(spec)
    modules = dict(net.named_modules())
    if unknown := [name for name in spec if name not in modules or not name]:
        children = ", ".join(name for name, _ in net.named_children())
        raise ValueError(
            f"optimizer= has {unknown[0]!r}, which is no module of the network; its modules are {children}"
        )
    return SeveralOptimizers({name: optimizer_factory(each) for name, each in spec.items()})


class SeveralOptimizers(ModuleOptimizer):
    """Makes an optimizer for each of some submodules."""

    def __init__(self, factories: Mapping[str, OptimizerFactory]) -> None:
        self.factories = dict(factories)

    def of_module(self, net: nn.Module) -> JoinedOptimizer:
        """Return the optimizers, joined; raise ``ValueError`` for parameters that two of them would train."""
        modules = dict(net.named_modules())
        owner: dict[int, str] = {}
        for name in self.factories:
            for parameter in modules[name].parameters():
                if (other := owner.setdefault(id(parameter), name)) != name:
                    raise ValueError(f"the optimizers {other!r} and {name!r} would train the same parameters")
        return JoinedOptimizer({name: make(modules[name].parameters()) for name, make in self.factories.items()})

    def __repr__(self) -> str:
        return repr(self.factories)


class JoinedOptimizer(torch.optim.Optimizer):
    """Several optimizers as one, which has their parameter groups in turn and the state of all.

    So learning-rate schedules, checkpoints and averages of moments need not know that there are several. ``step``
    steps all of them; a training step updates them one by one.
    """

    def __init__(self, optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
        self.optimizers = dict(optimizers)
        super().__init__([*chain.from_iterable(each.param_groups for each in self.optimizers.values())], {})
        for each in self.optimizers.values():
            self.state.update(each.state)
        self._share()

    def _share(self) -> None:
        """Let each optimizer work on its groups of this one, and on the state of all."""
        groups = iter(self.param_groups)
        for each in self.optimizers.values():
            each.param_groups = [next(groups) for _ in each.param_groups]
            each.state = self.state

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Step all optimizers."""
        for each in self.optimizers.values():
            each.step(closure)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned."""
        super().load_state_dict(state_dict)
        self._share()
