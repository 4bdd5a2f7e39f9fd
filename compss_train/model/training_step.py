"""Custom training steps: what ``build(training_step=...)`` is called with and returns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from compss_train.model.network_uses import called_functions

Update: TypeAlias = Callable[[str, Tensor, bool], None]
"""A step of the optimizer of this name, with the gradients of a loss; whether its graph is kept."""


@dataclass(kw_only=True)
class StepContext:
    """What a training or validation step receives besides the network and the batch."""

    loss: Callable[..., Tensor]
    """``build``'s loss with class weights: of outputs and targets, in training also of weights."""
    weight: Tensor | None = None
    """The weights of the samples if ``sample_weight`` is given."""
    epoch: int = 0
    """The epoch, counted from 0 over all fits; 0 in evaluation, which depends on none."""
    number: int = 0
    """Number of batches that this worker has trained on since ``build``, also before a resume.

    It is 0 in evaluation.
    """
    simulations: NDArray[np.int64] | None = None
    """In ``fit_online``, the number of each sample's simulation, shape (n,).

    Pairs of time steps have shape (n, 2). Simulations are counted from 0 in the order of their
    inputs. Other programs count on from there when they connect, from 2**40 if ``inputs`` has no
    length.
    """
    steps: NDArray[np.int64] | None = None
    """In ``fit_online``, each sample's time step, in the shape of ``simulations``.

    A sample without one has its index in its simulation.
    """
    training: bool = True
    """Whether this is a training step."""
    logged: dict[str, Any] = field(default_factory=dict)
    """What ``log`` was called with."""
    counts: dict[str, float] = field(default_factory=dict)
    """What some of the logged numbers are means over, by name; the others are over the samples."""
    optimizers: Mapping[str, torch.optim.Optimizer] = field(default_factory=dict)
    """The optimizers by name, if there are several."""
    apply: Update | None = None
    """What ``update`` does; ``None`` with one optimizer and in validation."""

    def log(self, name: str, value: Any, *, count: float | None = None) -> None:
        """Log a number: the record of each round has its mean over the samples.

        ``count`` is what it is a mean over, if that is not the samples of the batch.

        ``train_`` and ``val_`` at the beginning of the name are left out, as records of validation
        have a prefix of their own.
        """
        name = name.removeprefix("train_").removeprefix("val_")
        self.logged[name] = value
        if count is not None:
            self.counts[name] = count

    def update(self, name: str, loss: Tensor, *, retain_graph: bool = False) -> None:
        """Step one of several optimizers with the clipped gradients of this loss.

        Only the parameters of this optimizer change. ``retain_graph=True`` keeps the graph for
        another ``update`` with the same outputs.

        Raises ``ValueError`` for an unknown name, and ``RuntimeError`` where the trainer steps by
        itself.
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
"""A function of the network, a batch and the context.

The batch is (x, y), or (x,) without y, or what ``collate`` made.
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
    counts: Mapping[str, float] = {}
    """What some of the measured numbers are means over; the others are over the samples."""
    counted: Tensor | float | None = None
    """What the loss is a mean over, such as the number of targets; ``None`` for the samples."""


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


_CLIPPING = {"clip_grad_norm_", "clip_grad_value_"}
"""The functions of torch that change gradients in place."""


def clips_nothing(step: Any) -> str:
    """Return the function with which a training step clips gradients that are not there yet.

    It is nothing for a step without one, and for one that calls ``backward`` itself.
    """
    names = {name for function, _ in called_functions(step) for name in function.__code__.co_names}
    return "" if "backward" in names else next(iter(sorted(names & _CLIPPING)), "")
