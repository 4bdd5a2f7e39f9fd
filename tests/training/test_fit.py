"""``FitOptions``: one typed record of what ``fit`` was asked for."""

import inspect
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import DistributedTrainer, Merge
from compss_train.model.training_spec import TrainingSpec
from compss_train.training.data_source import as_data_source
from compss_train.training.fit import FitOptions
from tests import fit_options

SGD = partial(torch.optim.SGD, lr=0.1)
mse = nn.MSELoss()


def test_options_stand_everywhere_as_they_are_declared():
    missing = fit_options.differences()
    if missing:
        pytest.fail("\n".join(["python -m tests.fit_options writes these lines:", *missing]))


def test_what_is_missing_of_an_option_is_named():
    option = fit_options.Option("depth", "int | None", "None", "How deep. ``None`` (default).")
    known = list(fit_options.declared())
    with patch.object(fit_options, "declared", lambda: [*known[:-1], option]):
        missing = fit_options.differences()
    for line in (
        "trainer.py: +        depth: int | None = None,",
        "trainer.py: +        depth:",
        "trainer.py: +            How deep. ``None`` (default).",
        "trainer.py: +            depth=depth,",
        "named_fits.py: +    depth: int | None",
        "named_fits.py: -    max_time: float | timedelta | None",
    ):
        assert line in missing


def test_a_merge_is_by_default_synchronous_by_either_name():
    default = inspect.signature(DistributedTrainer.fit).parameters["merge"].default
    assert Merge.of(default).with_defaults() == FitOptions(num_epochs=1).merge


def test_options_without_batches_take_those_of_the_data_or_of_a_preset():
    def of(options, size=None):
        chosen = options.for_data(
            data(size),
            2,
            TrainingSpec(net=nn.Linear(2, 1), optimizer=SGD, loss=mse),
            scheduled=False,
        )
        return chosen.batch_size, chosen.num_batches_per_worker

    def data(size):
        return replace(as_data_source(np.zeros((60, 2), np.float32), None, 2), batch_size=size)

    asked = FitOptions(num_epochs=1)
    assert of(asked, 7) == (7, None)
    with pytest.raises(
        ValueError, match=("num_batches_per_worker=None and batch_size=None: give exactly one")
    ):
        of(asked)
    with pytest.raises(
        ValueError, match=("num_batches_per_worker=None and batch_size=None: give exactly one")
    ):
        asked.check_batches()
    auto = FitOptions(num_epochs=1, merge=Merge("auto"))
    auto.check_batches()
    assert of(auto) == (100, None)
    assert of(auto, 7) == (7, None)
    assert of(FitOptions(num_epochs=1, batch_size=3), 7) == (3, None)
    assert of(FitOptions(num_epochs=1, num_batches_per_worker=3), 7) == (None, 3)
