"""Which optimizers evaluate the loss themselves, by a closure that their ``step`` gets."""

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import torch
from torch import nn

from compss_train.model.devices import CPU, kept_random_state
from compss_train.model.joined_optimizer import JoinedOptimizer
from compss_train.model.net_optimizers import NetOptimizer, make_optimizer
from compss_train.model.tensor_extras import deep_copied

ClosureUse: TypeAlias = Literal["no", "evaluates", "evaluates again"]
"""Whether ``step`` is called without a closure, with one, or with one after the gradients exist.

LBFGS's ``step(closure)`` evaluates the loss. SAM's ``step(closure=None)``, as published, raises an
error without a closure, which evaluates the loss again after a step along the gradients.
"""


def closure_use(net: nn.Module, factory: NetOptimizer) -> ClosureUse:
    """Return how the optimizer that the factory makes of the network uses a closure.

    One that is not torch's, and may be called with a closure, makes a step of a copy of the
    network.
    """
    optimizer = make_optimizer(factory, net)
    parts = [optimizer]
    if isinstance(optimizer, JoinedOptimizer):
        parts = [*optimizer.optimizers.values()]
    if any(needs_closure(type(part).step) for part in parts):
        return "evaluates"
    if not any(may_use_closure(type(part).step) for part in parts):
        return "no"
    with kept_random_state(CPU):
        try:
            return step_with_zeros(make_optimizer(factory, deep_copied(net)))
        except Exception:  # which the first batch will raise, too
            return "no"


def step_with_zeros(optimizer: torch.optim.Optimizer) -> ClosureUse:
    """Make a step with gradients of zero; return how it used a closure."""

    def evaluate() -> float:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        return 0.0

    step: Any = optimizer.step
    evaluate()
    if needs_closure(type(optimizer).step):
        step(evaluate)
        return "evaluates"
    try:
        step()
    except Exception:
        if not may_use_closure(type(optimizer).step):
            raise
        evaluate()
        step(evaluate)
        return "evaluates again"
    return "no"


@lru_cache(maxsize=16)  # the inspection takes as long as a small layer
def needs_closure(step: Callable[..., Any]) -> bool:
    """Return whether the ``step`` of a class needs a closure of the loss, as that of LBFGS does."""
    _, *parameters = inspect.signature(step).parameters.values()
    return any(
        parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        for parameter in parameters
    )


@lru_cache(maxsize=16)
def may_use_closure(step: Callable[..., Any]) -> bool:
    """Return whether the ``step`` of a class needs a closure, or takes one and is not torch's."""
    if step.__module__.startswith("torch.optim."):
        return needs_closure(step)
    _, *parameters = inspect.signature(step).parameters.values()
    return bool(parameters)
