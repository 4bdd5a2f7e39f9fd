"""Networks, optimizers and schedules from names and numbers, instead of objects."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature
from itertools import pairwise
from typing import Any, TypeAlias

from torch import nn

from compss_train._utils.validation import check_count, suggestion
from compss_train.data.block import Block
from compss_train.model import devices, optimizers
from compss_train.model.schedule import ScheduleSpec

NetworkFactory: TypeAlias = Callable[..., nn.Module]
"""A class of networks, or a function of the numbers of inputs and outputs, and of options."""

LEARNING_RATE = 1e-3
"""Default learning rate of optimizers given by name."""


def make_network(
    net: nn.Module | NetworkFactory | None,
    options: Mapping[str, Any],
    sample: Block,
    *,
    outputs: int,
    hidden: int | Sequence[int],
    seed: int,
) -> nn.Module:
    """Return the initial network for a sample of shape (1, ...): ``net`` itself if it is a module.

    Otherwise its parameters are drawn as after ``torch.manual_seed(seed)``; the global random state
    is unchanged. A class is called with the numbers of inputs and outputs if ``options`` leave it
    two arguments to give or more.
    """
    if options and (net is None or isinstance(net, nn.Module)):
        raise TypeError(
            f"net_options={dict(options)} are for net=, a class or a function that "
            "makes the network"
        )
    if isinstance(net, nn.Module):
        return net
    inputs = sample.shape[1]
    with devices.IN_PROCESS, devices.random_state(seed, "cpu"):
        if net is not None:
            required = [
                name
                for name, parameter in signature(net).parameters.items()
                if name not in options and parameter.default is parameter.empty
            ]
            knows_sizes = isinstance(net, type) and len(required) < 2
            return net(**options) if knows_sizes else net(inputs, outputs, **options)
        network = perceptron(inputs, outputs, hidden)
    return network.double() if str(sample.dtype).endswith("float64") else network


def perceptron(inputs: int, outputs: int, hidden: int | Sequence[int] = (100,)) -> nn.Module:
    """Return linear layers with ReLU between them.

    ``hidden`` is the width of the hidden layer, or the widths of several.
    """
    widths = [inputs]
    for width in hidden if isinstance(hidden, list | tuple) else (hidden,):
        widths.append(check_count("hidden", width))
    layers: list[nn.Module] = []
    for width_before, width in pairwise(widths):
        layers += [nn.Linear(width_before, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))


def as_options(name: str, value: object) -> dict[str, Any]:
    """Return the value of a parameter that is a dict; an optimizer may be given by name instead.

    Raises ``TypeError`` for other values, which have no options.
    """
    if name == "optimizer" and (value is None or isinstance(value, str)):
        return {"optimizer": value or "adam"}
    if value is None or isinstance(value, Mapping):
        return dict(value or {})
    accepted = "a dict or a name, such as 'sgd'" if name == "optimizer" else "a dict"
    raise TypeError(
        f"{name}__... sets an option of {name}, but {name}={value!r} is not a dict; give {accepted}"
    )


def make_optimizer(
    optimizer: optimizers.OptimizerSpec | str | None, lr: float | None
) -> optimizers.OptimizerSpec:
    """Return the optimizer for ``DistributedTrainer.build``, with the learning rate ``lr`` if any.

    Raises ``ValueError`` if the optimizer has its own learning rate, or could have one.
    """
    if optimizer is not None and not isinstance(optimizer, str | Mapping):
        if lr is not None:
            raise ValueError(
                f"lr={lr} is for an optimizer with a name; set it in optimizer={optimizer!r}"
            )
        return optimizer
    options = as_options("optimizer", optimizer)
    if lr is not None and "lr" in options:
        raise ValueError(f"lr={lr} and optimizer={options}: give the learning rate in one of them")
    if lr is None and not isinstance(options.get("optimizer"), str):
        return options  # a class of torch has its own default
    return {"lr": LEARNING_RATE if lr is None else lr, **options}


def make_schedule(schedule: ScheduleSpec | str, num_epochs: int) -> ScheduleSpec:
    """Return the schedule for ``DistributedTrainer.build``.

    Those with a name end after ``num_epochs``.
    """
    if not isinstance(schedule, str):
        return schedule
    if schedule not in SCHEDULES:
        hint = suggestion(schedule, SCHEDULES)
        raise ValueError(
            f"unknown schedule {schedule!r}; choose one of {', '.join(SCHEDULES)}, "
            f"or give one{hint}"
        )
    return partial(SCHEDULES[schedule], num_epochs=num_epochs)


def cosine(epoch: float, *, num_epochs: int) -> float:
    """Return the factor of half a cosine."""
    return 0.5 * (1 + math.cos(math.pi * min(1.0, epoch / num_epochs)))


def linear(epoch: float, *, num_epochs: int) -> float:
    """Return the factor of a line."""
    return max(0.0, 1 - epoch / num_epochs)


SCHEDULES: Mapping[str, Callable[..., float]] = {"cosine": cosine, "linear": linear}
"""Factors of the learning rate that fall from 1 to 0 over the epochs of a fit.

Half a cosine is that of Loshchilov and Hutter 2017, without restarts.
"""
