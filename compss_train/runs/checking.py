"""Asking ``fit`` whether it would take options and data, without training anything."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from compss_train.callbacks import Callback
from compss_train.data import FileDataset
from compss_train.trainer import DistributedTrainer

if TYPE_CHECKING:
    from compss_train.runs.data import Samples


class _WouldBeginError(Exception):
    """The fit has found nothing wrong."""


class _Before(Callback):
    """Ends a fit before its first round."""

    def on_fit_start(self, trainer: DistributedTrainer, total_samples: int | None) -> None:
        """Raise, as all that was given has been looked at by now."""
        raise _WouldBeginError


def check_fit(num_workers: int, samples: Samples, held_out: Samples | None, options: Mapping[str, Any]) -> None:
    """Raise what ``fit`` raises for these options and data; the network has no part in that."""
    trainer = DistributedTrainer(num_workers, engine="serial", seed=0, threads=1)
    trainer.build(nn.Linear(1, 1), {"optimizer": "sgd", "lr": 1.0}, "mse")
    with warnings.catch_warnings(), trainer:
        warnings.simplefilter("ignore")  # the fit itself warns
        try:
            fit(trainer, samples, held_out, {**options, "callbacks": [_Before()], "progress": False})
        except _WouldBeginError:
            return


def fit(
    trainer: DistributedTrainer, samples: Samples, held_out: Samples | None, options: Mapping[str, Any]
) -> None:
    """Fit a trainer to samples, evaluating those that are held out."""
    options = dict(options)
    if held_out is not None:
        options["validation_data"] = held_out.x if isinstance(held_out.x, FileDataset) else held_out[:2]
    if samples.weight is not None:
        options["sample_weight"] = samples.weight
    trainer.fit(samples.x, samples.y, **options)
