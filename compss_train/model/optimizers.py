"""Optimizers by name, by torch class, or as a callable of parameters."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn

from compss_train._utils.validation import (
    suggestion,
)

OptimizerFactory: TypeAlias = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


OptimizerSpec: TypeAlias = Mapping[str, Any] | OptimizerFactory | torch.optim.Optimizer
"""What ``build(optimizer=...)`` takes for a network, or for one of its modules."""


_NAMED: dict[str, type[torch.optim.Optimizer]] = {
    each.__name__.lower(): each
    for each in vars(torch.optim).values()
    if isinstance(each, type)
    and issubclass(each, torch.optim.Optimizer)
    and each is not torch.optim.Optimizer
}
"""Torch's optimizers by their names in lower case, which EDDL has too."""


_EDDLS = {
    "beta_1": "betas",
    "beta_2": "betas",
    "epsilon": "eps",
    "rho": "alpha",
    "schedule_decay": "momentum_decay",
}
"""EDDL's names of parameters that have other names in torch, unless torch's class has EDDL's name,
too.
"""


BETAS = (0.9, 0.999)


def optimizer_factory(spec: OptimizerSpec) -> OptimizerFactory:
    """Return a factory of the optimizer, which takes a network's parameters.

    ``spec`` is a dict with ``"optimizer"`` (a name or a torch optimizer class) and its parameters,
    or any callable that takes parameters and returns an optimizer. For a name, parameters have
    torch's names or EDDL's, ``lr`` is required and the other defaults are torch's; for a class, the
    parameters are the class's own.

    Raises ``ValueError`` for an unknown name or parameter, for both names of one and for a missing
    ``lr``, ``TypeError`` for anything that is neither dict nor callable.
    """
    if not isinstance(spec, Mapping):
        if callable(spec):
            return spec
        name = f"<{type(spec).__name__}>" if hasattr(spec, "step") else repr(spec)
        raise TypeError(
            f"optimizer={name} is neither a dict "
            'nor a callable; give for example {"optimizer": "sgd", "lr": 0.05} or '
            "lambda parameters: torch.optim.SGD(parameters, lr=0.05)"
        )
    arguments = dict(spec)
    name = arguments.pop("optimizer", None)
    if isinstance(name, type) and issubclass(name, torch.optim.Optimizer):
        return partial(name, **arguments)
    if not isinstance(name, str) or name not in _NAMED:
        problem = "no 'optimizer' in the dict" if name is None else f"unknown optimizer {name!r}"
        hint = suggestion(name, _NAMED) if isinstance(name, str) else ""
        raise ValueError(
            f"{problem}; choose one of {', '.join(_NAMED)} or a torch.optim.Optimizer class{hint}"
        )
    return _from_name(name, arguments)


def _from_name(name: str, arguments: dict[str, Any]) -> OptimizerFactory:
    torch_class = _NAMED[name]
    defaults = {
        key: each.default for key, each in inspect.signature(torch_class).parameters.items()
    }
    del defaults["params"]
    accepted = [
        *defaults,
        *(eddl for eddl, own in _EDDLS.items() if own in defaults and eddl not in defaults),
    ]
    if unknown := [key for key in arguments if key not in accepted]:
        hint = suggestion(unknown[0], accepted)
        raise ValueError(
            f"optimizer {name!r} has no parameter {unknown}; it takes {', '.join(accepted)}{hint}"
        )
    if "lr" not in arguments:
        raise ValueError(f"optimizer {name!r} needs a learning rate: add 'lr' to the dict")
    translated = in_torch(name, arguments)
    for key, value in translated.items():
        if isinstance(value, str) and not key.endswith("_fn"):
            raise ValueError(f"optimizer {name!r} takes numbers, and {key}={value!r} is a string")
        pair = defaults[key]
        if isinstance(pair, tuple) and not (
            isinstance(value, list | tuple) and len(value) == len(pair)
        ):
            raise ValueError(
                f"optimizer {name!r} has {key}={value!r}; give {len(pair)} numbers, such as {pair}"
            )
    return partial(torch_class, **translated)


def in_torch(
    name: Any, arguments: Mapping[str, Any], betas: Sequence[float] = BETAS
) -> dict[str, Any]:
    """Return parameters by torch's names, if ``name`` is one of an optimizer.

    ``betas`` are those of which only one may be given. Raises ``ValueError`` for both names of one
    parameter.
    """
    if not isinstance(name, str) or name not in _NAMED:
        return dict(arguments)
    own = inspect.signature(_NAMED[name]).parameters
    translated = dict[str, Any]()
    for key, value in arguments.items():
        renamed = key if key in own else _EDDLS.get(key, key)
        if renamed != key and renamed in arguments:
            raise ValueError(
                f"optimizer {name!r} has {key} and {renamed}, two names of the "
                "same; give one of them"
            )
        translated[renamed] = tuple(value) if isinstance(value, list) else value
    if "betas" in translated and "betas" not in arguments:
        translated["betas"] = arguments.get("beta_1", betas[0]), arguments.get("beta_2", betas[1])
    return translated
