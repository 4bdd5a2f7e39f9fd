"""Modules in Lightning's style, whose steps and optimizers are used directly, without Lightning.

They bring their own ``training_step``, ``validation_step`` and ``configure_optimizers``.
"""

import inspect
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

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

_USAGE = (
    "return one optimizer, and at most one scheduler; or give the latter as build(schedule=...), "
    "several optimizers as build(optimizer={module: ...}, training_step=...)"
)


class ModuleStep:
    """A step that is a method of the module, with up to two arguments: a batch and its number."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, net: nn.Module, batch: Any, context: StepContext) -> Any:
        """Call the method; values it passes to ``self.log`` are recorded."""

        log = _Log(context)
        vars(net).update(log=log, log_dict=log.all)
        trainer = getattr(type(net), "trainer", None)
        is_of_lightning = isinstance(trainer, property) and trainer.fset is not None
        if is_of_lightning:
            net.trainer = _TrainerOfStep(context)  # type: ignore[assignment]
        method = getattr(net, self.__name__)
        parameters = inspect.signature(method).parameters
        try:
            return method(*(batch, context.number)[: len(parameters)])
        finally:
            del net.log, net.log_dict
            if is_of_lightning:
                net.trainer = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return self.__name__


class _TrainerOfStep:
    """What Lightning's own modules ask their ``trainer`` for while one of their steps runs.

    ``self.current_epoch`` and ``self.global_step`` would be 0 without it. Raises ``RuntimeError``
    for all else, and in evaluation, which is the same in every epoch.
    """

    logger = None
    loggers = ()

    def __init__(self, context: StepContext) -> None:
        self._context = context

    @property
    def current_epoch(self) -> int:
        """The epoch, counted from 0 over all fits."""
        self._check_training("current_epoch")
        return self._context.epoch

    @property
    def global_step(self) -> int:
        """The number of batches that this worker has trained before."""
        self._check_training("global_step")
        return self._context.number

    def _check_training(self, name: str) -> None:
        if not self._context.training:
            raise RuntimeError(
                f"self.{name} is not known in evaluation, which is the same in every epoch: leave "
                "it out of validation_step, or write one"
            )

    def __getattr__(self, name: str) -> Any:
        """Raise ``RuntimeError``: there is no trainer of Lightning."""
        raise RuntimeError(
            f"the module asks Lightning's Trainer for {name!r}, and none trains it: steps have "
            "self.log, self.current_epoch and self.global_step; write build(training_step=...) "
            "for others"
        )


class _Log:
    """``self.log`` of a module while one of its steps runs, with Lightning's arguments.

    Where and how often Lightning would show a number (``prog_bar``, ``logger``, ``on_step``,
    ``on_epoch``) makes no difference to records, which have its mean over the samples of all
    workers (``sync_dist``). What would change the mean is an error.
    """

    def __init__(self, context: StepContext) -> None:
        self._context = context

    def __call__(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Any = "mean",
        enable_graph: bool = False,
        sync_dist: bool = False,
        sync_dist_group: Any = None,
        add_dataloader_idx: bool = True,
        batch_size: float | None = None,
        *,
        metric_attribute: str | None = None,
        rank_zero_only: bool = False,
    ) -> None:
        """Log a number, which is a mean over ``batch_size``, by default the samples."""
        refused: dict[str, Any] = {}
        if reduce_fx not in ("mean", torch.mean):
            refused["reduce_fx"] = reduce_fx
        if sync_dist_group is not None:
            refused["sync_dist_group"] = sync_dist_group
        if rank_zero_only:
            refused["rank_zero_only"] = rank_zero_only
        for option, choice in refused.items():
            shown = getattr(choice, "__name__", repr(choice))
            raise TypeError(
                f"log({name!r}, {option}={shown}): records have means over the samples of all "
                f"workers, or over batch_size=; leave {option} out"
            )
        self._context.log(name, value, count=batch_size)

    def all(self, dictionary: Mapping[str, Any], *arguments: Any, **options: Any) -> None:
        """Log several numbers, as ``self.log_dict``."""
        for name, value in dictionary.items():
            self(name, value, *arguments, **options)


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


class Configured(NamedTuple):
    """What ``configure_optimizers`` has returned, in one of Lightning's forms."""

    optimizer: torch.optim.Optimizer
    scheduler: LRScheduler | None = None
    interval: Literal["epoch", "step"] = "epoch"
    """What the scheduler is stepped after."""
    monitor: str | None = None
    """The number that ``ReduceLROnPlateau`` is stepped with."""


class ConfiguredOptimizer:
    """What ``configure_optimizers`` of a Lightning-style module returns: an optimizer."""

    def of_module(self, net: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer; its ``configured_scheduler`` is the scheduler, if there is one.

        Raises ``TypeError`` for several optimizers or schedulers, and for options of schedulers
        that are not known.
        """
        return configured(net).optimizer

    def __repr__(self) -> str:
        return "configure_optimizers"


def configured(net: nn.Module) -> Configured:
    """Return the optimizer of a module, and how its scheduler is stepped.

    Raises the errors of ``ConfiguredOptimizer.of_module``.
    """
    returned: Any = net.configure_optimizers()  # type: ignore[operator]
    optimizer, scheduler = _optimizer_and_scheduler(returned)
    options = scheduler if isinstance(scheduler, dict) else {"scheduler": scheduler}
    if isinstance(returned, dict) and "monitor" in returned:
        options = {"monitor": returned["monitor"], **options}
    scheduler = options.get("scheduler", ())
    if not isinstance(optimizer, torch.optim.Optimizer) or not isinstance(
        scheduler, LRScheduler | None
    ):
        raise TypeError(f"configure_optimizers returned a {type(returned).__name__}; {_USAGE}")
    _check_scheduler_options(options)
    optimizer.configured_scheduler = scheduler  # type: ignore[attr-defined]  # for the schedule
    monitor = None
    if isinstance(scheduler, ReduceLROnPlateau):
        monitor = options.get("monitor")
        if isinstance(monitor, str):  # as in records
            monitor = monitor.removeprefix("train_")
    return Configured(optimizer, scheduler, options.get("interval", "epoch"), monitor)


def _check_scheduler_options(options: Mapping[str, Any]) -> None:
    """Raise ``TypeError`` for an option of a scheduler that would have no effect here.

    ``name`` is what Lightning's callbacks call it.
    """
    accepted: dict[str, tuple[Any, ...]] = {
        "interval": ("epoch", "step"),
        "frequency": (1,),
        "strict": (True,),
    }
    for option, value in options.items():
        if option in ("scheduler", "monitor", "name") or value in accepted.get(option, ()):
            continue
        hint = "leave it out"
        if option in accepted:
            hint = f"it can be {' or '.join(map(repr, accepted[option]))}"
        if option == "frequency":
            hint += "; give the scheduler longer steps, as in StepLR(optimizer, step_size=20)"
        raise TypeError(
            f"configure_optimizers returned a scheduler with {option}={value!r}; {hint}"
        )


def _optimizer_and_scheduler(returned: Any) -> tuple[Any, Any]:
    """Return both parts of what ``configure_optimizers`` returned, in one of Lightning's forms."""
    optimizer = returned
    scheduler: Any = None
    if isinstance(returned, dict):
        if {"optimizer"} <= returned.keys() <= {"optimizer", "lr_scheduler", "monitor"}:
            optimizer = returned["optimizer"]
            scheduler = returned.get("lr_scheduler")
    elif isinstance(returned, tuple) and len(returned) == 2 and _is_sequence(returned[1]):
        optimizer, scheduler = returned
    if _is_sequence(scheduler) and len(scheduler) == 1:
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
    _, scheduler, interval, monitor = configured(net)
    if scheduler is None:
        return None
    unit: ScheduleUnit = "batches" if interval == "step" else "epochs"
    return Schedule(attrgetter("configured_scheduler"), unit=unit, monitor=monitor)
