"""``FitOptions``: one typed record of what ``fit`` was asked for."""

import inspect
from dataclasses import MISSING, fields, replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import DistributedTrainer, Merge
from compss_train.model.training_spec import TrainingSpec
from compss_train.training.data_source import as_data_source
from compss_train.training.fit import FitOptions

SGD = partial(torch.optim.SGD, lr=0.1)
mse = nn.MSELoss()
KEYWORDS = [
    each
    for each in inspect.signature(DistributedTrainer.fit).parameters.values()
    if each.kind is inspect.Parameter.KEYWORD_ONLY
]


def test_the_options_are_the_keywords_of_fit_with_their_defaults():
    options = {each.name: each.default for each in fields(FitOptions)}
    assert options.pop("preset") is None  # set when the preset of merge has been applied
    assert options.keys() == {each.name for each in KEYWORDS}
    for each in KEYWORDS:
        if each.name == "merge":
            assert Merge.of(each.default).with_defaults() == options["merge"]
        else:
            assert options[each.name] == (MISSING if each.default is each.empty else each.default)


def test_options_without_batches_take_those_of_the_data_or_of_a_preset():
    def of(options, size=None):
        chosen = options.for_data(
            data(size), 2, TrainingSpec(net=nn.Linear(2, 1), optimizer=SGD, loss=mse), False
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
