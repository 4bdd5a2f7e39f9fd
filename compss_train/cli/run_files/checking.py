"""Asking ``fit`` whether it would take options and data, without training anything."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from compss_train.callbacks import Callback
from compss_train.callbacks.checks import warn_of_other_hooks
from compss_train.data import FileDataset
from compss_train.engines import SerialEngine
from compss_train.exceptions import DivergedError
from compss_train.trainer import DistributedTrainer
from compss_train.training.data_source import as_data_source
from compss_train.training.worker import train

if TYPE_CHECKING:
    from compss_train.cli.run_files.data import Dataset


class _WouldBeginError(Exception):
    """The fit has found nothing wrong."""


class _Before(Callback):
    """Ends a fit before its first round."""

    def on_fit_start(self, trainer: DistributedTrainer, total_samples: int | None) -> None:
        """Raise, as all that was given has been looked at by now."""
        raise _WouldBeginError


def check_fit(blocks: int, samples: Dataset, held_out: Dataset | None, options: Mapping[str, Any]) -> None:
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


class _OneBatchEngine(SerialEngine):
    """Trains on the first batch of a fit, as a worker does, and ends it."""

    def submit(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Run the task, which for training is given one batch of the first block or file that can be read."""
        if function is not train:
            return super().submit(function, *args, **options)
        *before, shard, device = args
        for block_pass in shard.assignment:
            _, size = shard.options.batching.bounds(block_pass.size)[0]
            options = replace(shard.options, num_batches_per_worker=1, batch_size=None)
            one = replace(shard, assignment=(replace(block_pass, size=size),), options=options)
            measured = super().submit(train, *before, one, device, **options)[-1]
            if self.peek(measured)["samples"]:
                break
        raise _EnoughError


def try_a_batch(net: nn.Module, build: Mapping[str, Any], samples: Dataset, options: Mapping[str, Any]) -> None:
    """Raise what a fit raises for the first batch, in the CPU of this process: that its loss is NaN, too."""
    few = {name: options[name] for name in ("batch_size", "num_batches_per_worker") if name in options}
    few |= {"num_epochs": 1, "shuffle": None, "shuffle_block_data": False, "file_buffer": 1, "progress": False}
    left_out = [DivergedError] if build.get("on_nan") == "skip" else []
    with warnings.catch_warnings(), DistributedTrainer(1, engine=_OneBatchEngine(), seed=0) as trainer:
        warnings.simplefilter("ignore")  # the fit itself warns
        trainer.build(net, **build)
        with suppress(_EnoughError, *left_out):
            fit(trainer, samples, None, few)


def warn_as_fit(num_workers: int, blocks: int, samples: Dataset, options: Mapping[str, Any]) -> None:
    """Warn of callbacks and idle workers as ``fit`` does; arrays are in so many blocks."""
    warn_of_other_hooks(options["callbacks"])
    as_data_source(samples.x, samples.y, blocks).warn_of_idle_workers(num_workers, options.get("shuffle", "blocks"))


def fit(
    trainer: DistributedTrainer, samples: Dataset, held_out: Dataset | None, options: Mapping[str, Any]
) -> None:
    """Fit a trainer to samples, evaluating those that are held out."""
    options = dict(options)
    if held_out is not None:
        options["validation_data"] = held_out.x if isinstance(held_out.x, FileDataset) else held_out[:2]
    if samples.weight is not None:
        options["sample_weight"] = samples.weight
    trainer.fit(samples.x, samples.y, **options)
