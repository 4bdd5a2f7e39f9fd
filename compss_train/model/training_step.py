"""Training steps of one's own: what ``build(training_step=...)`` is called with, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from compss_train.reports.records import BOOKKEEPING

Update: TypeAlias = Callable[[str, Tensor, bool], None]


@dataclass(kw_only=True)
class StepContext:
    """What a training or validation step gets beside the network and the batch."""

    loss: Callable[..., Tensor]
    """The ``loss`` of ``build``: of outputs and targets, and in training of ``weight``, too; with class weights."""
    weight: Tensor | None = None
    """The weights of the samples, with ``sample_weight``."""
    epoch: int = 0
    """The epoch, counted from 0 over all fits."""
    number: int = 0
    """How many batches this worker has trained before, since ``build``; also after a resume."""
    training: bool = True
    """Whether this is a training step."""
    logged: dict[str, Any] = field(default_factory=dict)
    """What ``log`` was called with."""
    optimizers: Mapping[str, torch.optim.Optimizer] = field(default_factory=dict)
    """The optimizers by name, if there are several."""
    apply: Update | None = None
    """What ``update`` does; ``None`` with one optimizer and in validation."""

    def log(self, name: str, value: Any) -> None:
        """Measure a number: its mean over the samples is in the record of each round."""
        self.logged[name] = value

    def update(self, name: str, loss: Tensor, *, retain_graph: bool = False) -> None:
        """Make a step of one of several optimizers: gradients of this loss for its parameters alone, clipped, step.

        ``retain_graph=True`` keeps the graph for another ``update`` with the same outputs. Raises ``ValueError``
        for an unknown name, and ``RuntimeError`` where the trainer steps by itself.
        """
        if self.apply is None:
            raise RuntimeError(
                "update() is for training with several optimizers, build(optimizer={name: ...}); with one, return "
                "the loss, and the trainer makes the step"
            )
        if name not in self.optimizers:
            raise ValueError(f"update({name!r}): the optimizers are {', '.join(self.optimizers)}")
        self.apply(name, loss, retain_graph)


Step: TypeAlias = Callable[[nn.Module, Any, StepContext], Any]
"""A function of the network, a batch, (x, y) or x where there is no y, and the context."""


class StepResult(NamedTuple):
    """What a step has computed."""

    loss: Tensor
    output: Any = None
    """What metrics are measured on; ``None`` if the step returned none."""
    target: Any = None
    measured: Mapping[str, Any] = {}
    """Other numbers by name."""


def run_step(step: Step, net: nn.Module, x: Any, y: Any, context: StepContext, *, measured: bool) -> StepResult:
    """Call a step and check what it returns; with ``measured`` there are metrics, which need its outputs."""
    returned = step(net, x if y is None else (x, y), context)
    values = dict(returned) if isinstance(returned, Mapping) else {"loss": returned}
    # Records have prefixes of their own; a step that returns no loss has "loss" as None.
    logged = {name.removeprefix("train_").removeprefix("val_"): value for name, value in context.logged.items()}
    values = logged | {key: value for key, value in values.items() if key != "loss" or value is not None}
    name = getattr(step, "__name__", type(step).__name__)
    if not isinstance(loss := values.pop("loss", None), Tensor):
        raise TypeError(
            f"{name} returned {_kind(returned)} without a loss; return the loss, a tensor, or a dict with it as "
            "'loss'"
        )
    output, target = values.pop("output", None), values.pop("target", x if y is None else y)
    if measured and output is None:
        raise ValueError(
            f"metric= is measured on outputs, which {name} does not return; return "
            "{'loss': loss, 'output': output}, or build without metric= and return the numbers themselves"
        )
    return StepResult(loss, output, target, {name: measured_number(name, value) for name, value in values.items()})


def measured_number(name: str, value: Any) -> Any:
    """Return a number that a step or callback measures; raise for other values, and names with other meanings."""
    if not isinstance(name, str) or name in BOOKKEEPING or name.startswith("val_"):
        raise ValueError(f"{name!r} has another meaning in the history; choose another name for what is measured")
    if isinstance(value, Real) or (isinstance(value, Tensor) and value.numel() == 1):
        return value
    raise TypeError(f"{name!r} was measured as {_kind(value)}; measure single numbers, the means of the batch")


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"a dict of {', '.join(map(repr, value)) or 'nothing'}"
    return "None" if value is None else f"a {type(value).__name__}"


def no_loss(output: Any, target: Any) -> Tensor:
    """Raise ``TypeError``: the loss of a model that was built without one."""
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
            f"{name}={value!r}: give a function of the model, the batch and a step context, or a method of the "
            "model"
        )
    step: Step | None = value
    return step
