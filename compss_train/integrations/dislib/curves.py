"""Training curves as dislib's next release has them: losses and scores of each round.

They are also on validation data.
"""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from numpy.typing import NDArray
from torch import nn

from compss_train.callbacks import Callback, WorkerCallback, WorkerContext
from compss_train.model import losses
from compss_train.trainer import DistributedTrainer

Score: TypeAlias = Callable[[NDArray[Any], NDArray[Any]], float]
"""A function of true and predicted values: one-hot rows if the targets are such, or classes."""
Curves: TypeAlias = tuple[nn.Module, list[float], list[float], list[float], list[float]]
"""The trained module; losses and scores in training; losses and scores on the validation data."""


class ScoreInTraining(WorkerCallback):
    """Logs the score of each worker's outputs in a round, as they were when it trained."""

    def __init__(self, score: Score) -> None:
        self._score = score
        self._batches: list[tuple[torch.Tensor, torch.Tensor]] = []

    def on_batch_end(self, context: WorkerContext) -> None:
        """Keep what was predicted for the batch, on its device."""
        if isinstance(context.output, torch.Tensor) and isinstance(context.y, torch.Tensor):
            self._batches.append(_compared(context.y.clone(), context.output.detach()))

    def on_round_end(self, context: WorkerContext) -> None:
        """Log the score."""
        if self._batches:
            true = torch.cat([target for target, _ in self._batches]).cpu()
            predicted = torch.cat([output for _, output in self._batches]).cpu()
            context.log("score", float(self._score(true.numpy(), predicted.numpy())))


class CurvesOfRounds(Callback):
    """Keeps the loss and the score of each round.

    They are those in training, and those of the merged network on validation data.
    """

    def __init__(
        self, loss: losses.BatchFunction, score: Score, test: tuple[Any, ...] | None
    ) -> None:
        self._loss = loss
        self._score = score
        self._test = test
        self.lists: tuple[list[float], list[float], list[float], list[float]] = ([], [], [], [])

    def on_round_end(self, trainer: DistributedTrainer, record: dict[str, Any]) -> None:
        """Add the numbers of a round."""
        numbers = [record["loss"], record.get("score", math.nan)]
        if self._test is not None:
            x, y, y_to_loss = self._test
            output = torch.as_tensor(trainer.predict(x))
            target = y_to_loss.to(output.dtype) if y_to_loss.is_floating_point() else y_to_loss
            target = losses.suitable_target(self._loss, output, target)
            true, predicted = _compared(y, output)
            numbers.append(float(self._loss(output, target)))
            numbers.append(float(self._score(true.numpy(), predicted.numpy())))
        for values, number in zip(self.lists, numbers, strict=False):
            values.append(number)


def _compared(target: torch.Tensor, output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return true and predicted values as scores compare them: integers if they are classes."""
    if output.dim() < 2 or output.shape[1] == 1:
        return target.reshape(output.shape), output
    predicted = output.argmax(dim=1)
    if target.shape != output.shape:
        return target.reshape(predicted.shape).long(), predicted
    one_hot = _one_hot(target.to(output.dtype).argmax(dim=1), output.shape[1])
    if not torch.equal(one_hot.to(target.dtype), target):
        return target, output
    return one_hot, _one_hot(predicted, output.shape[1])


def _one_hot(classes: torch.Tensor, number: int) -> torch.Tensor:
    """Return class numbers as one-hot vectors in the second dimension, as networks return them."""
    return nn.functional.one_hot(classes, number).movedim(-1, 1)


def accuracy(true: NDArray[Any], predicted: NDArray[Any]) -> float:
    """Return the share of rows that are equal; NaN for outputs that are no classes."""
    if predicted.dtype.kind == "f":
        return math.nan
    return float((true == predicted).reshape(len(true), -1).all(axis=1).mean())
