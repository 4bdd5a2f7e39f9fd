"""Asking ``fit`` whether it would take options and data, without training anything."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from compss_train.callbacks import Callback
from compss_train.trainer import DistributedTrainer

if TYPE_CHECKING:
    from compss_train.runs.data import Pair


class _WouldBeginError(Exception):
    """The fit has found nothing wrong."""


class _Before(Callback):
    """Ends a fit before its first round."""

    def on_fit_start(self, trainer: DistributedTrainer, total_samples: int | None) -> None:
        """Raise, as all that was given has been looked at by now."""
        raise _WouldBeginError


def check_fit(num_workers: int, pair: Pair, held_out: Pair | None, options: Mapping[str, Any]) -> None:
    """Raise what ``fit`` raises for these options and data; the network has no part in that."""
    trainer = DistributedTrainer(num_workers, engine="serial", seed=0, threads=1)
    trainer.build(nn.Linear(1, 1), {"optimizer": "sgd", "lr": 1.0}, "mse")
    with warnings.catch_warnings(), trainer:
        warnings.simplefilter("ignore")  # the fit itself warns
        try:
            fit(trainer, pair, held_out, {**options, "callbacks": [_Before()], "progress": False})
        except _WouldBeginError:
            return


def fit(trainer: DistributedTrainer, pair: Pair, held_out: Pair | None, options: Mapping[str, Any]) -> None:
    """Fit a trainer to x and y, where y may be ``None``, evaluating what is held out."""
    x, y = pair
    if held_out is not None:
        options = {**options, "validation_data": held_out[0] if held_out[1] is None else held_out}
    trainer.fit(x, y, **options)
