"""Optimizers by name, by torch class, or as a callable of parameters."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any, TypeAlias

import torch
from torch import nn

from compss_train._utils.validation import is_finite, suggestion

OptimizerFactory: TypeAlias = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

OptimizerSpec: TypeAlias = Mapping[str, Any] | OptimizerFactory | torch.optim.Optimizer
"""What ``build(optimizer=...)`` takes for a network, or for one of its modules."""

_CLASSES: dict[str, type[torch.optim.Optimizer]] = {
    value.__name__.lower(): value
    for value in vars(torch.optim).values()
    if isinstance(value, type)
    and issubclass(value, torch.optim.Optimizer)
    and value is not torch.optim.Optimizer
}
"""Torch's optimizers by their names in lower case, which EDDL has too."""

_TORCH_NAMES = {
    "beta_1": "betas",
    "beta_2": "betas",
    "epsilon": "eps",
    "rho": "alpha",
    "schedule_decay": "momentum_decay",
}
"""Torch's names of parameters by EDDL's. Some of torch's classes have EDDL's name themselves."""

BETAS = (0.9, 0.999)
"""The betas of most of torch's optimizers by default."""


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
    if not isinstance(name, str) or name not in _CLASSES:
        problem = "no 'optimizer' in the dict" if name is None else f"unknown optimizer {name!r}"
        hint = suggestion(name, _CLASSES) if isinstance(name, str) else ""
        raise ValueError(
            f"{problem}; choose one of {', '.join(_CLASSES)} or a torch.optim.Optimizer class{hint}"
        )
    return _from_name(name, arguments)


def _from_name(name: str, arguments: dict[str, Any]) -> OptimizerFactory:
    """Return the factory of torch's optimizer of this name; raise ``ValueError`` as above."""
    optimizer_class = _CLASSES[name]
    signature = inspect.signature(optimizer_class)
    defaults = {key: parameter.default for key, parameter in signature.parameters.items()}
    del defaults["params"]
    names_of_eddl = [
        key
        for key, torch_name in _TORCH_NAMES.items()
        if torch_name in defaults and key not in defaults
    ]
    accepted = [*defaults, *names_of_eddl]
    unknown = [key for key in arguments if key not in accepted]
    if unknown:
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
        default = defaults[key]
        if isinstance(default, int | float) and not isinstance(default, bool):
            _check_number(name, key, value)
        if isinstance(default, tuple):
            size = len(default)
            if not isinstance(value, list | tuple) or len(value) != size:
                raise ValueError(
                    f"optimizer {name!r} has {key}={value!r}; give {size} numbers, such as "
                    f"{default}"
                )
    return partial(optimizer_class, **translated)


def _check_number(optimizer: str, key: str, value: Any) -> None:
    """Raise ``ValueError`` for what is no finite number, also in a tensor, of one element.

    A learning rate is at least 0.
    """
    number = value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
    is_number = isinstance(number, Real) and not isinstance(number, bool)
    is_negative_rate = is_number and key == "lr" and number < 0
    if not is_number or is_negative_rate or not is_finite(number):
        accepted = "a finite number of at least 0" if key == "lr" else "a finite number"
        raise ValueError(f"optimizer {optimizer!r} has {key}={value!r}: give {accepted}")


def in_torch(
    name: Any, arguments: Mapping[str, Any], betas: Sequence[float] = BETAS
) -> dict[str, Any]:
    """Return parameters by torch's names, if ``name`` is one of an optimizer.

    ``betas`` are those of which only one may be given. Raises ``ValueError`` for both names of one
    parameter.
    """
    if not isinstance(name, str) or name not in _CLASSES:
        return dict(arguments)
    torch_parameters = inspect.signature(_CLASSES[name]).parameters
    translated = dict[str, Any]()
    for key, value in arguments.items():
        torch_name = key if key in torch_parameters else _TORCH_NAMES.get(key, key)
        if torch_name != key and torch_name in arguments:
            raise ValueError(
                f"optimizer {name!r} has {key} and {torch_name}, two names of the "
                "same; give one of them"
            )
        translated[torch_name] = tuple(value) if isinstance(value, list) else value
    if "betas" in translated and "betas" not in arguments:
        first, second = betas
        translated["betas"] = (arguments.get("beta_1", first), arguments.get("beta_2", second))
    return translated
