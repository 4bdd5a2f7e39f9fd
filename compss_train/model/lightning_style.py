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


def check_hooks(net: nn.Module) -> None:
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


class ConfiguredOptimizer:
    """The optimizer that ``configure_optimizers`` of a module in Lightning's style returns, and its
    schedule.
    """

    def of_module(self, net: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer; its ``configured_scheduler`` is the scheduler, if there is one.

        Raises ``TypeError`` for several optimizers or schedulers, and for options of schedulers
        that are not known.
        """
        return self.configured(net)[0]

    def configured(self, net: nn.Module) -> tuple[torch.optim.Optimizer, LRScheduler | None, str]:
        """Return the optimizer, its scheduler, and whether this counts each ``"epoch"`` or
        ``"step"``.
        """
        returned: Any = net.configure_optimizers()  # type: ignore[operator]
        optimizer = returned
        scheduler = None
        if isinstance(returned, dict) and {"optimizer"} <= {*returned} <= {
            "optimizer",
            "lr_scheduler",
        }:
            optimizer = returned["optimizer"]
            scheduler = returned.get("lr_scheduler")
        elif (
            isinstance(returned, tuple)
            and len(returned) == 2
            and isinstance(returned[1], list | tuple)
        ):
            optimizer = returned[0]
            scheduler = returned[1][0] if len(returned[1]) == 1 else returned[1]
        if isinstance(optimizer, tuple | list) and len(optimizer) == 1:
            optimizer = optimizer[0]
        options = {
            "interval": "epoch",
            **(scheduler if isinstance(scheduler, dict) else {"scheduler": scheduler}),
        }
        scheduler = options.pop("scheduler", ())
        interval = options.pop("interval")
        fits = isinstance(optimizer, torch.optim.Optimizer) and isinstance(
            scheduler, LRScheduler | None
        )
        if (
            not fits
            or interval not in ("epoch", "step")
            or options.get("monitor", "val_loss") != "val_loss"
        ):
            raise TypeError(
                f"configure_optimizers returned a {type(returned).__name__}; return one "
                "optimizer, and at most one scheduler, with interval epoch or step and monitor "
                "val_loss; or give the latter as build(schedule=...), several optimizers as "
                "build(optimizer={module: ...}, training_step=...)"
            )
        optimizer.configured_scheduler = scheduler  # where the schedule finds it
        return optimizer, scheduler, interval

    def __repr__(self) -> str:
        return "configure_optimizers"


def configured_schedule(net: nn.Module, factory: object) -> Schedule | None:
    """Return the schedule in ``configure_optimizers`` of a module in Lightning's style, if there is
    one.
    """
    if not isinstance(factory, ConfiguredOptimizer):
        return None
    _, scheduler, interval = factory.configured(net)
    unit: ScheduleUnit = "batches" if interval == "step" else "epochs"
    return None if scheduler is None else Schedule(attrgetter("configured_scheduler"), unit=unit)
