"""Custom training steps: what a function given to ``build(training_step=...)`` is called with and
returns.

Modules in Lightning's style bring their own ``training_step``, ``validation_step`` and
``configure_optimizers``, which are used directly, without Lightning.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from compss_train.model import optimizers
from compss_train.model.losses import BatchFunction

_HOOKS = {
    *(
        "backward",
        "optimizer_step",
        "optimizer_zero_grad",
        "lr_scheduler_step",
        "configure_gradient_clipping",
    ),
    *("configure_model", "configure_sharded_model", "configure_callbacks", "setup", "teardown"),
    *(
        "transfer_batch_to_device",
        "training_epoch_end",
        "validation_epoch_end",
        "training_step_end",
    ),
}
"""Methods, besides those whose names begin with ``on_``, that Lightning's Trainer would call."""
EPOCH_ENDS = {"training_step": "on_train_epoch_end", "validation_step": "on_validation_epoch_end"}
"""The hooks that workers call when they have called the step for their samples of an epoch."""
_LIBRARIES = ("torch", "lightning", "pytorch_lightning", "lightning_fabric", "builtins")

Update: TypeAlias = Callable[[str, Tensor, bool], None]


@dataclass(kw_only=True)
class StepContext:
    """What a training or validation step receives besides the network and the batch."""

    loss: Callable[..., Tensor]
    """``build``'s loss with class weights: a function of outputs and targets, in training also of
    ``weight``.
    """
    weight: Tensor | None = None
    """The weights of the samples if ``sample_weight`` is given."""
    epoch: int = 0
    """The epoch, counted from 0 over all fits."""
    number: int = 0
    """Number of batches that this worker has trained on since ``build``, including those before a
    resume.
    """
    simulations: NDArray[np.int64] | None = None
    """In ``fit_online``, the number of each sample's simulation: shape (n,), or (n, 2) for pairs of
    time steps.

    Simulations are counted from 0 in the order of their inputs. Other programs count on from there
    when they connect, from 2**40 if ``inputs`` has no length.
    """
    steps: NDArray[np.int64] | None = None
    """In ``fit_online``, each sample's time step, or its index in its simulation if it has none;
    same shape.
    """
    training: bool = True
    """Whether this is a training step."""
    logged: dict[str, Any] = field(default_factory=dict)
    """What ``log`` was called with."""
    optimizers: Mapping[str, torch.optim.Optimizer] = field(default_factory=dict)
    """The optimizers by name, if there are several."""
    apply: Update | None = None
    """What ``update`` does; ``None`` with one optimizer and in validation."""

    def log(self, name: str, value: Any) -> None:
        """Log a number; each round's record has its mean over the samples, with prefixes of its
        own.
        """
        self.logged[name.removeprefix("train_").removeprefix("val_")] = value

    def update(self, name: str, loss: Tensor, *, retain_graph: bool = False) -> None:
        """Step one of several optimizers with the clipped gradients of this loss, for its own
        parameters only.

        ``retain_graph=True`` keeps the graph for another ``update`` with the same outputs. Raises
        ``ValueError`` for an unknown name, and ``RuntimeError`` where the trainer steps by itself.
        """
        if self.apply is None:
            raise RuntimeError(
                "update() is for training with several optimizers, build(optimizer={name: ...}); "
                "with one, return the loss, and the trainer makes the step"
            )
        if name not in self.optimizers:
            raise ValueError(f"update({name!r}): the optimizers are {', '.join(self.optimizers)}")
        self.apply(name, loss, retain_graph)


Step: TypeAlias = Callable[[nn.Module, Any, StepContext], Any]
"""A function of the network, a batch ((x, y), or (x,) without y, or what ``collate`` made) and the
context.
"""


class StepResult(NamedTuple):
    """What a step has computed."""

    loss: Tensor
    output: Any = None
    """What metrics are measured on; ``None`` if the step returned none."""
    target: Any = None
    measured: Mapping[str, Any] = {}
    """Other numbers by name."""
    losses: Tensor | None = None
    """The loss of each sample, shape (n,), if the step returned it."""


def no_loss(output: Any, target: Any) -> Tensor:
    """The loss of a model that was built without one: raise ``TypeError``."""
    raise TypeError("the model was built without loss=, which is needed here")


def as_step(value: Any, net: nn.Module, name: str) -> Step | None:
    """Return a step that was given as a function, a method of the network, or the name of one.

    A bound method of ``net`` is called on the worker's copy. Raises ``TypeError`` for other values.
    """
    if isinstance(value, str):
        value = getattr(type(net), value, value)
    if getattr(value, "__self__", None) is net:
        value = value.__func__
    if value is not None and not callable(value):
        raise TypeError(
            f"{name}={value!r}: give a function of (model, batch, context), or a "
            "method of the model"
        )
    step: Step | None = value
    return step


def training_steps(
    net: nn.Module,
    optimizer: optimizers.OptimizerSpec | Mapping[str, optimizers.OptimizerSpec] | None,
    loss: str | BatchFunction | None,
    training_step: Step | str | None,
    validation_step: Step | str | None,
) -> tuple[optimizers.NetOptimizer, Step | None, Step | None]:
    """Return the optimizer, the training and the validation step; a step is ``None`` for the
    outputs and the loss.

    Without ``loss`` and steps, a Lightning-style module provides them. A model is evaluated by the
    validation step, or by its outputs and the loss, or without a loss by the training step. Raises
    ``TypeError`` and ``ValueError`` for arguments that are missing or do not fit.
    """
    training = as_step(training_step, net, "training_step")
    validation = as_step(validation_step, net, "validation_step")
    lightning_style = all(
        callable(getattr(net, name, None)) for name in ("training_step", "configure_optimizers")
    )
    if training is None and loss is None:
        if not lightning_style:
            raise TypeError('build needs a loss, for example "cross_entropy", or a training_step')
        _check_hooks(net)
        training = ModuleStep("training_step")
        if validation is None and callable(getattr(net, "validation_step", None)):
            validation = ModuleStep("validation_step")
    if optimizer is None and not lightning_style:
        raise TypeError('build needs an optimizer, for example {"optimizer": "sgd", "lr": 0.05}')
    factory = (
        optimizers.ConfiguredOptimizer()
        if optimizer is None
        else optimizers.net_optimizer(optimizer, net)
    )
    if (
        validation is None
        and loss is None
        and not isinstance(factory, optimizers.SeveralOptimizers)
    ):
        validation = training
    return factory, training, validation


class ModuleStep:
    """A step that is a method of the module; it takes a batch and the batch's number, or
    nothing.
    """

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, net: nn.Module, batch: Any, context: StepContext) -> Any:
        """Call the method; values it passes to ``self.log`` are recorded."""

        def log(name: str, value: Any, *_: Any, **__: Any) -> None:
            context.log(name, value)

        def log_dict(values: dict[str, Any], *_: Any, **__: Any) -> None:
            for name, value in values.items():
                context.log(name, value)

        vars(net).update(log=log, log_dict=log_dict)
        method = getattr(net, self.__name__)
        return method(*(batch, context.number)[: len(inspect.signature(method).parameters)])

    def __repr__(self) -> str:
        return self.__name__


def _check_hooks(net: nn.Module) -> None:
    """Raise ``TypeError`` for methods that only Lightning's Trainer would call, and for manual
    optimization.
    """
    own = [
        each for each in type(net).__mro__ if each.__module__.partition(".")[0] not in _LIBRARIES
    ]
    methods = dict.fromkeys(
        name for each in own for name in vars(each) if callable(vars(each)[name])
    )
    hooks = [name for name in methods if name in _HOOKS or name.startswith("on_")]
    asked = [f"the hook {name}()" for name in hooks if name not in EPOCH_ENDS.values()]
    if getattr(net, "automatic_optimization", True) is False:
        asked.append("automatic_optimization=False")
    if asked:
        raise TypeError(
            f"{type(net).__name__} needs what only Lightning's Trainer has: {', '.join(asked)}; "
            "leave it out, or write build(training_step=...), whose step context has the epoch, "
            "the number of the batch and the optimizers"
        )
