"""The recipe: all that a worker needs to know about a model besides its parameters. Published once a build."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import nn

from compss_train import parameters as params
from compss_train.losses import BatchFunction
from compss_train.measures import Measures
from compss_train.optimizers import OptimizerFactory
from compss_train.parameters import Parameters
from compss_train.weights import TrainingLoss
from compss_train.worker.stepping import Stepping

Precision = Literal["fp32", "bf16"]
MemoryFormat = Literal["contiguous", "channels_last"]

PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
MEMORY_FORMATS: dict[MemoryFormat, torch.memory_format] = {
    "contiguous": torch.contiguous_format,
    "channels_last": torch.channels_last,
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """A network and how it is trained and measured."""

    net: nn.Module
    optimizer: OptimizerFactory
    loss: BatchFunction
    measures: Measures = field(default_factory=Measures)
    transform: Callable[[torch.Tensor], torch.Tensor] | None = None
    """Applied to each batch of x in the worker, on its device."""
    precision: Precision = "fp32"
    memory_format: MemoryFormat = "contiguous"
    class_weight: tuple[float, ...] | None = None
    """Of the loss that is trained on."""
    stepping: Stepping = field(default_factory=Stepping)

    def replica(self, parameters: Parameters, device: str, training: bool) -> Replica:
        """Return a model copy with these parameters, which shares nothing with the recipe."""
        own = copy.deepcopy(self)
        for part in (own.net, own.loss, own.transform, *own.measures.modules()):
            if isinstance(part, nn.Module):
                part.to(device).train(training)
        if own.memory_format != "contiguous":
            own.net.to(memory_format=MEMORY_FORMATS[own.memory_format])  # type: ignore[call-overload]
        params.load_into(own.net, parameters)
        return Replica(own, device, TrainingLoss(own.loss, own.class_weight, device))


@dataclass(frozen=True, slots=True)
class Replica:
    """One model copy on its device."""

    recipe: Recipe
    device: str
    loss: TrainingLoss

    def forward(self, x: torch.Tensor, y: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return outputs and targets of a batch; without y the transformed batch is its own target."""
        if self.recipe.transform is not None:
            x = self.recipe.transform(x)
        return self.predict(x), x if y is None else y

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs of a transformed batch."""
        if self.recipe.memory_format == "channels_last" and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        output: torch.Tensor = self.recipe.net(x)
        return output

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Return the context in which forward passes and losses run."""
        if self.recipe.precision == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(torch.device(self.device).type, torch.bfloat16)
