"""The eight named fits: what each name fixes, and that all other keywords of ``fit`` are theirs, too."""

import inspect

import numpy as np
import pytest

from compss_train import BufferSpec, DistributedTrainer, Merge
from compss_train.callbacks import Callback
from compss_train.training.named_fits import FitKeywords, NamedFits
from tests.helpers.models import FITS, SGD, assert_same_bits, blocked, classification, mlp
from tests.helpers.small_fits import trainer_of

PARAMETERS = inspect.signature(DistributedTrainer.fit).parameters
KEYWORDS = {name for name, parameter in PARAMETERS.items() if parameter.kind is parameter.KEYWORD_ONLY}
POSITIONAL = {"num_epochs", "num_batches_per_worker"}


class Recording(NamedFits[dict]):
    """Returns the arguments of ``fit``."""

    def fit(self, x, y=None, **keywords):
        return keywords


def call(name, **options):
    return getattr(Recording(), name)(None, None, 3, 2, **options)


def kind_of(name):
    return "commutative" if "asynchronous" in name else "synchronous"


def test_typed_keywords_are_those_that_no_name_fixes():
    decided = {*POSITIONAL, "batch_size", "shuffle", "shuffle_block_data"}
    assert set(FitKeywords.__annotations__) == KEYWORDS - decided


@pytest.mark.parametrize("name", FITS)
def test_what_a_name_fixes_is_refused(name):
    trainer = trainer_of(workers=1, net=mlp, optimizer=SGD)
    for keyword, value in {"shuffle": None, "callback_s": ()}.items():
        with pytest.raises(TypeError, match=keyword):
            getattr(trainer, name)(*blocked(*classification(), 2), 2, 1, **{keyword: value})
    with pytest.raises(ValueError, match="num_batches_per_worker=2 and batch_size=3: give exactly one"):
        getattr(trainer, name)(*blocked(*classification(), 2), 2, 1, batch_size=3)
    for field, value in {"kind": kind_of(name), "every": 1, "unit": "epochs"}.items():
        with pytest.raises(TypeError, match=rf"no Merge\({field}=...\): its name and .*kind='{kind_of(name)}'"):
            call(name, merge=Merge(**{field: value}))


@pytest.mark.parametrize("name", FITS)
def test_merges_and_presets_go_with_a_name(name):
    kind, every = kind_of(name), {"n_epocs_sync": 3} if "n_epochs" in name else {}
    given = {"outer_optimizer": {"optimizer": "sgd", "lr": 1.0}, "dtype": "int8"}
    whole = {"every": every.get("n_epocs_sync", 1), "unit": "epochs", **given}
    assert call(name, merge=Merge(**given), **every)["merge"] == Merge(kind, **whole)
    if kind == "synchronous":
        assert call(name, merge=Merge("auto", **given), **every)["merge"] == Merge("auto", **whole)
        assert call(name, merge="slowmo")["merge"].kind == "slowmo"
    else:
        with pytest.raises(TypeError, match=r"takes no Merge\(kind=...\): its name .* kind='commutative'"):
            call(name, merge="auto")


def test_arguments_of_other_names_are_refused():
    trainer = trainer_of(workers=1, net=mlp, optimizer=SGD)
    data = *blocked(*classification(), 2), 2, 1
    for name, keyword, value in (
        ("fit_synchronous_with_GPU", "n_epocs_sync", 2),
        ("fit_synchronous_shuffle_with_GPU", "shuffle_blocks", False),
        ("fit_asynchronous_shuffle_n_epochs_with_GPU", "shuffle_block_data", False),
    ):
        with pytest.raises(TypeError, match=keyword):
            getattr(trainer, name)(*data, **{keyword: value})


class Counting(Callback):
    def __init__(self):
        self.rounds = 0

    def on_round_end(self, trainer, record):
        self.rounds += 1


@pytest.mark.parametrize("name", FITS)
def test_they_train_as_fit_does_with_the_same_keywords(name):
    x, y = blocked(*classification(), 4)
    weights = np.linspace(0.5, 1.5, x.number_samples)
    results = []
    for by_name in (True, False):
        trainer, counting = DistributedTrainer(2, engine="serial", seed=3, threads=1), Counting()
        trainer.build(mlp(), SGD, "cross_entropy")
        common = {"validation_data": (x, y), "callbacks": [counting], "sample_weight": weights, "max_time": 600}
        common |= {"buffer": BufferSpec("FIFO", 64), "progress": False}
        n = {"n_epocs_sync": 2} if "n_epochs" in name else {}
        if by_name:
            results.append(getattr(trainer, name)(x, y, 2, 2, **n, **common))
        else:
            merge = "commutative" if "asynchronous" in name else "synchronous"
            shuffle = "total" if "shuffle" in name else "blocks"
            options = {"merge": Merge(merge, every=2 if n else 1), "shuffle": shuffle}
            results.append(trainer.fit(x, y, num_epochs=2, num_batches_per_worker=2, **options, **common))
        assert counting.rounds == len(trainer.history) > 0
        assert all("val_loss" in record for record in trainer.history)
    assert_same_bits(*results)
