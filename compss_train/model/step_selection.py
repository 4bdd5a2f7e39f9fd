"""Which steps and optimizer a model is trained with, from the arguments of ``build``."""

from collections.abc import Mapping
from typing import NamedTuple

from torch import nn

from compss_train.model.lightning_style import (
    ConfiguredOptimizer,
    ModuleStep,
    check_lightning_style,
    is_lightning_style,
)
from compss_train.model.losses import BatchFunction
from compss_train.model.optimizers import OptimizerSpec
from compss_train.model.several_optimizers import NetOptimizer, SeveralOptimizers, net_optimizer
from compss_train.model.training_step import Step, as_step


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
    training, validation = (
        as_step(training_step, net, "training_step"),
        as_step(validation_step, net, "validation_step"),
    )
    if training is None and loss is None:
        training, validation = _of_module(net, validation)
    factory = ConfiguredOptimizer() if optimizer is None else net_optimizer(optimizer, net)
    if isinstance(factory, ConfiguredOptimizer) and not is_lightning_style(net):
        raise TypeError('build needs an optimizer, for example {"optimizer": "sgd", "lr": 0.05}')
    if validation is None and loss is None and not isinstance(factory, SeveralOptimizers):
        validation = training
    return TrainingSteps(factory, training, validation)


def _of_module(net: nn.Module, validation: Step | None) -> tuple[Step, Step | None]:
    if not is_lightning_style(net):
        raise TypeError('build needs a loss, for example "cross_entropy", or a training_step')
    check_lightning_style(net)
    own = ModuleStep("validation_step") if callable(getattr(net, "validation_step", None)) else None
    return ModuleStep("training_step"), validation or own
