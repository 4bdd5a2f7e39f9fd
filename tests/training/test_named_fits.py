"""The eight named fits: what each name fixes, and that all other keywords of ``fit`` are theirs, too."""

import inspect
import itertools

import numpy as np
import pytest

from compss_train import BufferSpec, DistributedTrainer, Merge
from compss_train.callbacks import Callback
from compss_train.training.named_fits import ARGUMENTS, FIXED, FitKeywords, NamedFits
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


def refused(name):
    """The keywords of ``fit`` that a name refuses."""
    return ({*FIXED[name], *ARGUMENTS} & KEYWORDS) - {"shuffle_block_data"}


def test_typed_keywords_are_those_that_no_name_fixes():
    decided = {*ARGUMENTS, *POSITIONAL, "shuffle_block_data", *itertools.chain.from_iterable(FIXED.values())}
    assert set(FitKeywords.__annotations__) == KEYWORDS - decided


@pytest.mark.parametrize("name", FITS)
def test_what_a_name_fixes_is_refused_with_the_reason(name):
    for keyword in refused(name):
        reason = "its name fixes" if keyword in FIXED[name] else f"its argument {ARGUMENTS.get(keyword)} decides"
        with pytest.raises(TypeError, match=rf"{name} takes no {keyword}=: {reason}.*call fit\(\.\.\., {keyword}="):
            call(name, **{keyword: None})
    for field, value in {"kind": FIXED[name]["kind"], "every": 1, "unit": "epochs"}.items():
        reason = (
            "its argument n_epocs_sync" if field == "every" and "every" not in FIXED[name] else "its name fixes"
        )
        with pytest.raises(
            TypeError, match=rf"{name} takes no Merge\({field}=...\): {reason}.*Merge\({field}=...\)"
        ):
            call(name, merge=Merge(**{field: value}))


@pytest.mark.parametrize("name", FITS)
def test_merges_and_presets_go_with_a_name(name):
    kind, every = FIXED[name]["kind"], {"n_epocs_sync": 3} if "every" not in FIXED[name] else {}
    given = {"outer_optimizer": {"optimizer": "sgd", "lr": 1.0}, "dtype": "int8"}
    whole = {"every": every.get("n_epocs_sync", 1), "unit": "epochs", **given}
    assert call(name, merge=Merge(**given), **every)["merge"] == Merge(kind, **whole)
    if kind == "synchronous":
        assert call(name, merge=Merge("auto", **given), **every)["merge"] == Merge("auto", **whole)
        assert call(name, merge="slowmo")["merge"].kind == "slowmo"
    else:
        with pytest.raises(TypeError, match=r"takes no Merge\(kind=...\): its name fixes kind='commutative'"):
            call(name, merge="auto")


@pytest.mark.parametrize("name", FITS)
def test_a_keyword_that_fit_does_not_have_is_an_error(name):
    trainer = trainer_of(workers=1, net=mlp, optimizer=SGD)
    with pytest.raises(TypeError, match="callback_s"):
        getattr(trainer, name)(*blocked(*classification(), 2), 2, 1, callback_s=())


def test_arguments_of_other_names_are_refused():
    with pytest.raises(TypeError, match=r"takes no n_epocs_sync=: its name fixes every=1"):
        call("fit_synchronous_with_GPU", n_epocs_sync=2)
    with pytest.raises(TypeError, match=r"takes no shuffle_blocks=: its name fixes shuffle='total'"):
        call("fit_synchronous_shuffle_with_GPU", shuffle_blocks=False)
    with pytest.raises(TypeError, match=r"takes no shuffle_block_data=: its name fixes shuffle_block_data=True"):
        call("fit_asynchronous_shuffle_n_epochs_with_GPU", shuffle_block_data=False)


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
