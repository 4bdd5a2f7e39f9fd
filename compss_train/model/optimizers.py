"""Optimizers by EDDL's names and parameter names, by torch class, or as a callable."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import nn

from compss_train._utils.validation import suggestion

OptimizerFactory: TypeAlias = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
OptimizerSpec: TypeAlias = Mapping[str, Any] | OptimizerFactory

_TORCH_NAMES = {
    "lr": "lr",
    "momentum": "momentum",
    "weight_decay": "weight_decay",
    "nesterov": "nesterov",
    "epsilon": "eps",
    "amsgrad": "amsgrad",
    "schedule_decay": "momentum_decay",
    "fused": "fused",
}
_ALIASES = {"learning_rate": "lr", "eps": "epsilon", "betas": "beta_1", "alpha": "rho"}
"""Names of parameters in other libraries, and EDDL's names of them."""
_BETAS = ("beta_1", "beta_2")
_ADAM = (*_BETAS, "epsilon", "weight_decay")


@dataclass(frozen=True)
class _Named:
    """A torch optimizer, and the parameters besides ``lr`` that EDDL has for it."""

    torch_class: type[torch.optim.Optimizer]
    accepted: tuple[str, ...]
    renamed: Mapping[str, str] = field(default_factory=dict)


# `fused` is an option of torch: one kernel for the whole update, faster and with slightly different rounding.
_NAMED = {
    "adam": _Named(torch.optim.Adam, (*_ADAM, "amsgrad", "fused")),
    "sgd": _Named(torch.optim.SGD, ("momentum", "weight_decay", "nesterov", "fused")),
    "rmsprop": _Named(torch.optim.RMSprop, ("rho", "epsilon", "weight_decay", "momentum"), {"rho": "alpha"}),
    "adagrad": _Named(torch.optim.Adagrad, ("epsilon", "weight_decay", "fused")),
    "adamax": _Named(torch.optim.Adamax, _ADAM),
    "adadelta": _Named(torch.optim.Adadelta, ("rho", "epsilon", "weight_decay"), {"rho": "rho"}),
    "nadam": _Named(torch.optim.NAdam, (*_ADAM, "schedule_decay")),
}


@dataclass(frozen=True)
class TorchOptimizer:
    """A torch optimizer class with its keyword arguments; called with parameters it returns the optimizer."""

    torch_class: type[torch.optim.Optimizer]
    arguments: Mapping[str, Any]

    def __call__(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return a new optimizer over the parameters."""
        return self.torch_class(parameters, **self.arguments)


def optimizer_factory(spec: OptimizerSpec) -> OptimizerFactory:
    """Return a factory of the optimizer, which takes a network's parameters.

    ``spec`` is a dict with ``"optimizer"`` (an EDDL name or a torch optimizer class) and its parameters, or
    any callable that takes parameters and returns an optimizer. For a name, ``lr`` is required and the other
    defaults are torch's; for a class, the parameters are the class's own.

    Raises ``ValueError`` for an unknown name or parameter and for a missing ``lr``, ``TypeError`` for anything
    that is neither dict nor callable.
    """
    if isinstance(spec, Mapping):
        return _from_mapping(dict(spec))
    if callable(spec):
        return spec
    raise TypeError(
        f"optimizer={_short_repr(spec)} is neither a dict nor a callable; give for example "
        '{"optimizer": "sgd", "lr": 0.05} or lambda parameters: torch.optim.SGD(parameters, lr=0.05)'
    )


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether ``step`` must be given a function that evaluates the loss of a batch, as that of LBFGS."""
    return _takes_closure(type(optimizer).step)


def _short_repr(value: object) -> str:
    return f"<{type(value).__name__}>" if isinstance(value, torch.optim.Optimizer) else repr(value)


@cache
def _takes_closure(step: Callable[..., Any]) -> bool:
    _, *parameters = inspect.signature(step).parameters.values()
    return any(each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD for each in parameters)


def _from_mapping(spec: dict[str, Any]) -> TorchOptimizer:
    optimizer = spec.pop("optimizer", None)
    if isinstance(optimizer, type) and issubclass(optimizer, torch.optim.Optimizer):
        return TorchOptimizer(optimizer, spec)
    if not isinstance(optimizer, str) or optimizer not in _NAMED:
        problem = "no 'optimizer' in the dict" if optimizer is None else f"unknown optimizer {optimizer!r}"
        hint = suggestion(optimizer, _NAMED) if isinstance(optimizer, str) else ""
        raise ValueError(f"{problem}; choose one of {', '.join(_NAMED)} or a torch.optim.Optimizer class{hint}")
    return _from_name(optimizer, spec)


def _from_name(name: str, arguments: dict[str, Any]) -> TorchOptimizer:
    named = _NAMED[name]
    accepted = ("lr", *named.accepted)
    if unknown := [key for key in arguments if key not in accepted]:
        hint = suggestion(_ALIASES.get(unknown[0], unknown[0]), accepted)
        raise ValueError(f"optimizer {name!r} has no parameter {unknown}; it takes {', '.join(accepted)}{hint}")
    if strings := [f"{key}={value!r}" for key, value in arguments.items() if isinstance(value, str)]:
        raise ValueError(f"optimizer {name!r} takes numbers, and {', '.join(strings)} is a string")
    if "lr" not in arguments:
        raise ValueError(f"optimizer {name!r} needs a learning rate: add 'lr' to the dict")
    names = {**_TORCH_NAMES, **named.renamed}
    translated = {names[key]: value for key, value in arguments.items() if key not in _BETAS}
    if any(key in arguments for key in _BETAS):
        translated["betas"] = (arguments.get("beta_1", 0.9), arguments.get("beta_2", 0.999))
    return TorchOptimizer(named.torch_class, translated)
