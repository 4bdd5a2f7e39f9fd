"""Modules in Lightning's style, whose steps and optimizers are used directly, without Lightning.

They bring their own ``training_step``, ``validation_step`` and ``configure_optimizers``.
"""

import inspect
from operator import attrgetter
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from compss_train.model.schedule import Schedule, ScheduleUnit
from compss_train.model.training_step import StepContext

EPOCH_ENDS = {"training_step": "on_train_epoch_end", "validation_step": "on_validation_epoch_end"}
"""The hooks that workers call when they have called the step for their samples of an epoch."""

_HOOKS = {
    "backward",
    "configure_callbacks",
    "configure_gradient_clipping",
    "configure_model",
    "configure_sharded_model",
    "lr_scheduler_step",
    "optimizer_step",
    "optimizer_zero_grad",
    "setup",
    "teardown",
    "training_epoch_end",
    "training_step_end",
    "transfer_batch_to_device",
    "validation_epoch_end",
}
"""Methods, besides those whose names begin with ``on_``, that Lightning's Trainer would call."""

_LIBRARIES = ("torch", "lightning", "pytorch_lightning", "lightning_fabric", "builtins")
"""Packages whose classes have hooks that do nothing."""

_SCHEDULER_OPTIONS = {"scheduler", "interval", "frequency", "monitor", "strict", "name"}


class ModuleStep:
    """A step that is a method of the module, with up to two arguments: a batch and its number."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, net: nn.Module, batch: Any, context: StepContext) -> Any:
        """Call the method; values it passes to ``self.log`` are recorded."""

        def log(
            name: str,
            value: Any,
            *_: Any,
            reduce_fx: Any = "mean",
            batch_size: float | None = None,
            **__: Any,
        ) -> None:
            if reduce_fx not in ("mean", torch.mean):
                raise TypeError(
                    f"log({name!r}, reduce_fx={reduce_fx!r}): records have means over the samples; "
                    "leave reduce_fx out"
                )
            context.log(name, value, count=batch_size)

        def log_dict(values: dict[str, Any], *_: Any, **options: Any) -> None:
            for name, value in values.items():
                log(name, value, **options)

        vars(net).update(log=log, log_dict=log_dict)
        method = getattr(net, self.__name__)
        parameters = inspect.signature(method).parameters
        try:
            return method(*(batch, context.number)[: len(parameters)])
        finally:
            del net.log, net.log_dict

    def __repr__(self) -> str:
        return self.__name__


def check_hooks(net: nn.Module) -> None:
    """Raise ``TypeError`` for a module that needs Lightning's Trainer.

    That calls more methods than the trainer, and lets modules step their optimizers themselves.
    """
    methods = dict.fromkeys(
        name
        for base in type(net).__mro__
        if base.__module__.partition(".")[0] not in _LIBRARIES
        for name, value in vars(base).items()
        if callable(value)
    )
    needs = [
        f"the hook {name}()"
        for name in methods
        if (name in _HOOKS or name.startswith("on_")) and name not in EPOCH_ENDS.values()
    ]
    if getattr(net, "automatic_optimization", True) is False:
        needs.append("automatic_optimization=False")
    if needs:
        raise TypeError(
            f"{type(net).__name__} needs what only Lightning's Trainer has: {', '.join(needs)}; "
            "leave it out, or write build(training_step=...), whose step context has the epoch, "
            "the number of the batch and the optimizers"
        )


class ConfiguredOptimizer:
    """What ``configure_optimizers`` of a Lightning-style module returns: an optimizer."""

    def of_module(self, net: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer; its ``configured_scheduler`` is the scheduler, if there is one.

        Raises ``TypeError`` for several optimizers or schedulers, and for options of schedulers
        that are not known.
        """
        optimizer, _, _ = configured(net)
        return optimizer

    def __repr__(self) -> str:
        return "configure_optimizers"


def configured(net: nn.Module) -> tuple[torch.optim.Optimizer, LRScheduler | None, str]:
    """Return the optimizer, its scheduler, and the interval of the latter: an epoch or a step.

    Raises the errors of ``ConfiguredOptimizer.of_module``.
    """
    returned: Any = net.configure_optimizers()  # type: ignore[operator]
    optimizer, scheduler = _optimizer_and_scheduler(returned)
    options = scheduler if isinstance(scheduler, dict) else {"scheduler": scheduler}
    scheduler = options.get("scheduler", ())
    interval = options.get("interval", "epoch")
    if (
        not isinstance(optimizer, torch.optim.Optimizer)
        or not isinstance(scheduler, LRScheduler | None)
        or not options.keys() <= _SCHEDULER_OPTIONS
        or interval not in ("epoch", "step")
        or options.get("frequency", 1) != 1
        or options.get("monitor", "val_loss") != "val_loss"
    ):
        raise TypeError(
            f"configure_optimizers returned a {type(returned).__name__}; return one "
            "optimizer, and at most one scheduler, with interval epoch or step, frequency 1 and "
            "monitor val_loss; or give the latter as build(schedule=...), several optimizers as "
            "build(optimizer={module: ...}, training_step=...)"
        )
    optimizer.configured_scheduler = scheduler  # type: ignore[attr-defined]  # for the schedule
    return optimizer, scheduler, interval


def _optimizer_and_scheduler(returned: Any) -> tuple[Any, Any]:
    """Return both parts of what ``configure_optimizers`` returned, in one of Lightning's forms."""
    optimizer = returned
    scheduler = None
    if isinstance(returned, dict):
        if {"optimizer"} <= returned.keys() <= {"optimizer", "lr_scheduler"}:
            optimizer = returned["optimizer"]
            scheduler = returned.get("lr_scheduler")
    elif isinstance(returned, tuple) and len(returned) == 2 and _is_sequence(returned[1]):
        optimizer, scheduler = returned
        if len(scheduler) == 1:
            scheduler = scheduler[0]
    if _is_sequence(optimizer) and len(optimizer) == 1:
        optimizer = optimizer[0]
    return optimizer, scheduler


def _is_sequence(value: object) -> bool:
    return isinstance(value, list | tuple)


def configured_schedule(net: nn.Module, factory: object) -> Schedule | None:
    """Return the schedule that ``configure_optimizers`` returns with the optimizer, or ``None``."""
    if not isinstance(factory, ConfiguredOptimizer):
        return None
    _, scheduler, interval = configured(net)
    if scheduler is None:
        return None
    unit: ScheduleUnit = "batches" if interval == "step" else "epochs"
    return Schedule(attrgetter("configured_scheduler"), unit=unit)
