"""``FitOptions``: one typed record of what ``fit`` was asked for."""

import inspect
from dataclasses import MISSING, fields

import pytest

from compss_train import DistributedTrainer, Merge
from compss_train.training.fit import FitOptions

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
            assert Merge.of(each.default).filled() == options["merge"]
        else:
            assert options[each.name] == (MISSING if each.default is each.empty else each.default)


def test_options_without_batches_take_those_of_the_data_or_of_a_preset():
    asked = FitOptions(num_epochs=1)
    assert asked.with_batch_size(7).batch_size == 7
    with pytest.raises(ValueError, match="num_batches_per_worker=None and batch_size=None: give exactly one"):
        asked.with_batch_size()
    assert FitOptions(num_epochs=1, merge=Merge("auto")).with_batch_size().batch_size is None
    for given in ({"batch_size": 3}, {"num_batches_per_worker": 3}):
        assert FitOptions(num_epochs=1, **given).with_batch_size(7) == FitOptions(num_epochs=1, **given)
