"""Asking ``fit`` whether it would take options and data, without training anything."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
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


def check_fit(blocks: int, samples: Samples, held_out: Samples | None, options: Mapping[str, Any]) -> None:
    """Raise what ``fit`` raises for these options and data, arrays in so many blocks; the network has no part."""
    trainer = DistributedTrainer(blocks, engine="serial", seed=0, threads=1)
    trainer.build(nn.Linear(1, 1), {"optimizer": "sgd", "lr": 1.0}, "mse")
    with warnings.catch_warnings(), trainer:
        warnings.simplefilter("ignore")  # the fit itself warns
        try:
            fit(trainer, samples, held_out, {**options, "callbacks": [_Before()], "progress": False})
        except _WouldBeginError:
            return


class _EnoughError(Exception):
    """One batch has been trained on."""


class _OneBatch:
    """A transform that ends the fit when a second batch comes."""

    def __init__(self, transform: Callable[[torch.Tensor], torch.Tensor] | None) -> None:
        self._transform = transform
        self._seen = False

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._seen:
            raise _EnoughError
        self._seen = True
        return x if self._transform is None else self._transform(x)


def try_a_batch(net: nn.Module, build: Mapping[str, Any], samples: Samples, options: Mapping[str, Any]) -> None:
    """Raise what network, loss, metrics and optimizer raise for the first batch; on the CPU of this process."""
    few = {name: options[name] for name in ("batch_size", "num_batches_per_worker") if name in options}
    few |= {"num_epochs": 1, "shuffle": None, "shuffle_block_data": False, "file_buffer": 1, "progress": False}
    build = {**build, "transform": _OneBatch(build.get("transform"))}
    with warnings.catch_warnings(), DistributedTrainer(1, engine="serial", seed=0) as trainer:
        warnings.simplefilter("ignore")  # the fit itself warns
        trainer.build(net, **build)
        with suppress(_EnoughError):
            fit(trainer, samples, None, few)


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
