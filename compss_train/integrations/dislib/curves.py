"""Training curves as dislib's next release has them: losses and scores of each round, also on
validation data.
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
"""A function of true and predicted values: one-hot rows if the targets are such, otherwise
classes.
"""
Curves: TypeAlias = tuple[nn.Module, list[float], list[float], list[float], list[float]]
"""The trained module; losses and scores in training; losses and scores on the validation data."""


class ScoreInTraining(WorkerCallback):
    """Logs the score of each worker's outputs for the samples that it trained in a round, as it
    trained them.
    """

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
            true, predicted = (
                torch.cat(each).cpu().numpy() for each in zip(*self._batches, strict=True)
            )
            context.log("score", float(self._score(true, predicted)))


class CurvesOfRounds(Callback):
    """Keeps the loss and the score of each round, in training and of the merged network on
    validation data.
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
            numbers += [
                float(self._loss(output, target)),
                float(self._score(true.numpy(), predicted.numpy())),
            ]
        for values, number in zip(self.lists, numbers, strict=False):
            values.append(number)


def _compared(target: torch.Tensor, output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return true and predicted values as scores compare them: integers if they are classes."""
    if output.dim() < 2 or output.shape[1] == 1:
        return target.reshape(output.shape), output
    predicted = output.argmax(dim=1)
    if target.shape != output.shape:
        return target.reshape(predicted.shape).long(), predicted
    one_hot = nn.functional.one_hot(target.to(output.dtype).argmax(dim=1), output.shape[1]).movedim(
        -1, 1
    )
    if not torch.equal(one_hot.to(target.dtype), target):
        return target, output
    return one_hot, nn.functional.one_hot(predicted, output.shape[1]).movedim(-1, 1)


def accuracy(true: NDArray[Any], predicted: NDArray[Any]) -> float:
    """Return the share of rows that are equal; NaN for outputs that are no classes."""
    if predicted.dtype.kind == "f":
        return math.nan
    return float((true == predicted).reshape(len(true), -1).all(axis=1).mean())
