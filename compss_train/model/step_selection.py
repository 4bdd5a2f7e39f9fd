"""Which steps and optimizer a model is trained with, from the arguments of ``build``.

Modules in the style of Lightning bring their own: ``training_step``, ``validation_step`` and
``configure_optimizers``. They are taken as they are, without Lightning.
"""

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from compss_train.model.losses import BatchFunction
from compss_train.model.optimizers import OptimizerSpec
from compss_train.model.several_optimizers import ModuleOptimizer, NetOptimizer, SeveralOptimizers, net_optimizer
from compss_train.model.training_step import Step, StepContext, as_step

_HOOKS = {
    *("backward", "optimizer_step", "optimizer_zero_grad", "lr_scheduler_step", "configure_gradient_clipping"),
    *("configure_model", "configure_sharded_model", "configure_callbacks", "setup", "teardown"),
    *("transfer_batch_to_device", "training_epoch_end", "validation_epoch_end", "training_step_end"),
}
"""Methods, beside those that begin with ``on_``, that Lightning's Trainer would call."""
_LIBRARIES = ("torch", "lightning", "pytorch_lightning", "lightning_fabric", "builtins")


class TrainingSteps(NamedTuple):
    """How a model is trained and evaluated."""

    optimizer: NetOptimizer
    training: Step | None
    """``None`` for the outputs of the network and the loss."""
    validation: Step | None


def training_steps(
    net: nn.Module,
    optimizer: OptimizerSpec | Mapping[str, OptimizerSpec] | None,
    loss: str | BatchFunction | None,
    training_step: Step | str | None,
    validation_step: Step | str | None,
) -> TrainingSteps:
    """Return the steps and the optimizer; without ``loss`` and steps, those of a module in Lightning's style.

    A model is evaluated by the validation step, or by its outputs and the loss, or without a loss by the training
    step. Raises ``TypeError`` and ``ValueError`` for arguments that are missing or do not fit.
    """
    training = as_step(training_step, net, "training_step")
    validation = as_step(validation_step, net, "validation_step")
    lightning_style = all(callable(getattr(net, name, None)) for name in ("training_step", "configure_optimizers"))
    if training is None and loss is None:
        if not lightning_style:
            raise TypeError('build needs a loss, for example "cross_entropy", or a training_step')
        _check_hooks(net)
        training = ModuleStep("training_step")
        if validation is None and callable(getattr(net, "validation_step", None)):
            validation = ModuleStep("validation_step")
    if optimizer is None and not lightning_style:
        raise TypeError('build needs an optimizer, for example {"optimizer": "sgd", "lr": 0.05}')
    factory = ConfiguredOptimizer() if optimizer is None else net_optimizer(optimizer, net)
    if validation is None and loss is None and not isinstance(factory, SeveralOptimizers):
        validation = training
    return TrainingSteps(factory, training, validation)


class ModuleStep:
    """A step that is a method of the module, of a batch and its number."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, net: nn.Module, batch: Any, context: StepContext) -> Any:
        """Call the method; what it gives to ``self.log`` is measured."""

        def log(name: str, value: Any, *_: Any, **__: Any) -> None:
            context.log(name, value)

        def log_dict(values: dict[str, Any], *_: Any, **__: Any) -> None:
            context.logged.update(values)

        vars(net).update(log=log, log_dict=log_dict)
        method = getattr(net, self.__name__)
        try:
            numbered = len(inspect.signature(method).parameters) > 1
            return method(batch, context.number) if numbered else method(batch)
        except (AttributeError, RuntimeError) as error:
            if isinstance(error, AttributeError) or "Trainer" in str(error):
                error.add_note(
                    f"{type(net).__name__} runs without Lightning's Trainer. If it asks for that, write "
                    "build(training_step=...), whose step context has the epoch, the number of the batch and the "
                    "optimizers."
                )
            raise

    def __repr__(self) -> str:
        return self.__name__


class ConfiguredOptimizer(ModuleOptimizer):
    """The optimizer that ``configure_optimizers`` returns."""

    def of_module(self, net: nn.Module) -> torch.optim.Optimizer:
        """Return it; raise ``TypeError`` for several, and for learning-rate schedules."""
        returned: Any = net.configure_optimizers()  # type: ignore[operator]
        configured = returned
        if isinstance(configured, dict) and set(configured) == {"optimizer"}:
            configured = configured["optimizer"]
        if isinstance(configured, tuple | list) and len(configured) == 1:
            configured = configured[0]
        if not isinstance(configured, torch.optim.Optimizer):
            raise TypeError(
                f"configure_optimizers returned {_described(returned)}; return one optimizer, and give a "
                "learning-rate schedule as build(schedule=...), several optimizers as "
                "build(optimizer={module: ...}, training_step=...)"
            )
        return configured

    def __repr__(self) -> str:
        return "configure_optimizers"


def _described(returned: Any) -> str:
    if isinstance(returned, dict):
        return f"a dict of {', '.join(map(repr, returned))}"
    return f"{len(returned)} values" if isinstance(returned, tuple | list) else f"a {type(returned).__name__}"


def _check_hooks(net: nn.Module) -> None:
    """Raise ``TypeError`` for methods that only Lightning's Trainer would call, and for manual optimization."""
    own = [each for each in type(net).__mro__ if each.__module__.partition(".")[0] not in _LIBRARIES]
    methods = dict.fromkeys(name for each in own for name in vars(each) if callable(vars(each)[name]))
    asked = [f"the hook {name}()" for name in methods if name in _HOOKS or name.startswith("on_")]
    if getattr(net, "automatic_optimization", True) is False:
        asked.append("automatic_optimization=False")
    if asked:
        raise TypeError(
            f"{type(net).__name__} asks for what only Lightning's Trainer has: {', '.join(asked)}; leave it out, "
            "or write build(training_step=...), whose step context has the epoch, the number of the batch and the "
            "optimizers"
        )
