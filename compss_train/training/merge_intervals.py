"""Numbers of batches between merges as functions of the epoch, for ``Merge(every=..., unit="batches")``.

Epochs are counted from 0 over all fits of a trainer, as in learning-rate schedules.
"""

from collections.abc import Callable
from dataclasses import dataclass

from compss_train._utils.validation import check_at_least_0, check_count


@dataclass(frozen=True, kw_only=True)
class PostLocal:
    """Post-local SGD: merge after every batch until an epoch, then less often.

    Parameters
    ----------
    epochs:
        The number of first epochs in which workers merge after every batch.
    then:
        The number of batches, or what ``unit`` says, between two merges from then on.

    Raises ``ValueError`` unless both are integers of at least 1.

    Source: Lin, Stich, Patel and Jaggi, "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020.
    """

    epochs: int
    then: int

    def __post_init__(self) -> None:
        check_count("epochs", self.epochs)
        check_count("then", self.then)

    def __call__(self, epoch: int) -> int:
        """Return the number of batches between merges in an epoch."""
        return 1 if epoch < self.epochs else self.then


@dataclass(frozen=True, kw_only=True)
class Quadratic:
    """The quadratic synchronization rule: the lower the learning rate, the rarer the merges.

    The number of batches between merges is max(least, floor((growth / lr)²)), with the learning rate at the start
    of the epoch.

    Parameters
    ----------
    lr:
        The learning rate that the schedule multiplies, as in the optimizer.
    growth:
        The learning rate at which the rule gives one batch (the paper's alpha), to be tuned.
    least:
        The least number of batches between merges.
    schedule:
        The function of the epoch that is given to ``build``; ``None`` (default) for a constant learning rate.
    warm_up:
        The number of first epochs in which the learning rate rises; they merge as often as the epoch after them.

    Raises ``ValueError`` for numbers that are not positive, and for an epoch whose learning rate is not.

    Source: Gu, Lyu, Arora, Zhang and Huang, "A Quadratic Synchronization Rule for Distributed Deep Learning", ICLR
    2024 (arXiv 2310.14423).
    """

    lr: float
    growth: float
    least: int = 1
    schedule: Callable[[int], float] | None = None
    warm_up: int = 0

    def __post_init__(self) -> None:
        for name in ("lr", "growth"):
            if not check_at_least_0(name, getattr(self, name)):
                raise ValueError(f"{name}={getattr(self, name)!r}: give a number above 0")
        check_count("least", self.least)
        check_count("warm_up", self.warm_up, least=0)
        if self.schedule is not None and not callable(self.schedule):
            raise TypeError(f"schedule={self.schedule!r}: give the function of the epoch that build gets, or None")

    def __call__(self, epoch: int) -> int:
        """Return the number of batches between merges in an epoch."""
        epoch = max(epoch, self.warm_up)
        lr = self.lr * (1.0 if self.schedule is None else float(self.schedule(epoch)))
        if not lr > 0:
            raise ValueError(
                f"the learning rate is {lr} in epoch {epoch}, and the quadratic rule needs one above 0: end the "
                "schedule later, or give warm_up= if it begins with 0"
            )
        return max(self.least, int((self.growth / lr) ** 2))
