"""The learning-rate finder: the range test of Smith 2017, arXiv 1506.01186."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compss_train._utils.imports import import_optional
from compss_train._utils.validation import check_count, check_positive
from compss_train.data.block_passes import BlockPass
from compss_train.data.order import Batching
from compss_train.exceptions import DivergedError
from compss_train.training.data_source import DataSource
from compss_train.training.inference import inference
from compss_train.training.workplace import Workplace
from compss_train.worker.train import losses_by_rate
from compss_train.worker.work import Work, WorkOptions

SMOOTHING = 0.9
"""The decay of the moving average of the losses."""
_SKIPPED = 10
"""Initial steps that are never suggested, because the moving average has not settled."""


@dataclass(frozen=True)
class LearningRates:
    """The losses of a short training in which the learning rate grows with each batch."""

    rates: list[float]
    """Learning rates, each larger than the one before by the same factor."""
    losses: list[float]
    """The loss of each batch before its step."""

    @property
    def smoothed(self) -> NDArray[np.float64]:
        """A bias-corrected moving average of the losses."""
        average, values = 0.0, []
        for number, loss in enumerate(self.losses, 1):
            average = SMOOTHING * average + (1 - SMOOTHING) * loss
            values.append(average / (1 - SMOOTHING**number))
        return np.array(values)

    @property
    def suggestion(self) -> float:
        """The learning rate at which the smoothed loss falls fastest, as a function of the rate's logarithm.

        Raises ``DivergedError`` if the loss never falls.
        """
        values = self.smoothed
        last = int(values.argmin())
        slopes = np.gradient(values, np.log(self.rates)) if len(values) > 1 else np.zeros(1)
        first = min(_SKIPPED, last)
        steepest = first + int(slopes[first : last + 1].argmin())
        if not slopes[steepest] < 0:
            raise DivergedError(
                f"the loss falls at none of the learning rates from {self.rates[0]:g} to {self.rates[-1]:g}; give "
                "find_lr a smaller lowest= or more steps=, or check the data"
            )
        return self.rates[steepest]

    def plot(self, path: str | Path | None = None) -> Any:
        """Return a matplotlib figure of the losses over the learning rates; needs the extra ``plot``.

        ``path`` is a file to save it to, as .png, .svg or .pdf.
        """
        import_optional("matplotlib", extra="plot", needed_by="plot")
        from compss_train.reports.plots import draw_rates

        figure = draw_rates(self.rates, self.losses, self.smoothed.tolist(), self.suggestion)
        if path is not None:
            figure.savefig(path)
        return figure


def growing_rates(lowest: float, highest: float, steps: int) -> list[float]:
    """Return learning rates from ``lowest`` to ``highest``, evenly spaced on a logarithmic scale.

    Raises ``ValueError`` unless 0 < lowest < highest and there are at least 2 steps.
    """
    check_count("steps", steps, least=2)
    if not check_positive("lowest", lowest) < check_positive("highest", highest):
        raise ValueError(f"lowest={lowest!r} is not below highest={highest!r}; give a range of learning rates")
    return [float(rate) for rate in np.geomspace(lowest, highest, steps)]


def range_test(workplace: Workplace, data: DataSource, batch_size: int, rates: list[float]) -> LearningRates:
    """Train shuffled batches with these rates in a task: from some blocks, or in several passes over all blocks."""
    check_count("batch_size", batch_size)
    seed, batches, blocks = workplace.model.seed, 0, []
    for number in np.random.default_rng(seed).permutation(len(data.sizes)).tolist():
        if batches < len(rates):
            blocks.append(number)
            batches += math.ceil(data.sizes[number] / batch_size)
    epochs = range(math.ceil(len(rates) / batches))
    block_passes = tuple(BlockPass(block, epoch, data.sizes[block]) for epoch in epochs for block in blocks)
    batching = Batching(size=batch_size)
    options = WorkOptions(batching=batching, shuffle_block_data=True, seed=seed, structure=data.structure)
    work = Work(options, block_passes, task="the learning-rate finder")
    with inference(workplace, data, batch_size) as (tasks, parameters):
        ref = tasks.submit(losses_by_rate, parameters, work, rates)
        losses = tasks.engine.fetch([ref])[0]
    return LearningRates(rates[: len(losses)], losses)
