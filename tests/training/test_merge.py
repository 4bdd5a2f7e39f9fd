"""``Merge``: what it accepts, how what is left out is filled, and intervals that are functions of
the epoch.
"""

import threading

import numpy as np
import pytest

from compss_train import BufferSpec, DistributedTrainer, Merge
from compss_train.callbacks import Callback
from compss_train.training import PostLocal
from compss_train.training.merge import DEFAULTS
from compss_train.training.named_fits import NamedFits
from tests.helpers.callbacks import NoTasks
from tests.helpers.models import FITS, SGD, assert_same_bits, blocked, classification, mlp
from tests.helpers.small_fits import fit, trainer_of

MOMENTUM = {"optimizer": "sgd", "lr": 0.7, "momentum": 0.9}


def test_what_is_left_out_is_filled():
    assert (
        Merge().with_defaults()
        == Merge("synchronous", 1, "epochs", None, "keep", rule="weighted")
        == DEFAULTS
    )
    given = Merge("commutative", every=PostLocal(epochs=1, then=2), rule="halving")
    assert given.with_defaults(Merge(every=3, unit="batches")).with_defaults() == Merge(
        "commutative", PostLocal(epochs=1, then=2), "batches", None, "keep", rule="halving"
    )
    assert Merge.of("auto").preset == "auto"
    assert (given.quorum, Merge("commutative").quorum) == (0, None)
    assert Merge.of(given) is given
    assert given.preset is None


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"kind": "async"}, "merge='async'"),
        ({"every": -1}, "every=-1"),
        ({"every": 1.5}, "every=1.5"),
        ({"unit": "samples"}, "unit='samples'"),
        ({"every": 0, "unit": "batches"}, "give a number of batches of at least 1"),
        ({"kind": "auto", "every": 2}, "every= and unit="),
        ({"rule": "mean"}, "rule='mean'"),
        ({"kind": "synchronous", "rule": "halving"}, "rule='halving'"),
        ({"kind": "parameter_server", "rule": "halving"}, "rule='halving'"),
        (
            {"optimizer_state": "lose"},
            ("choose one of 'keep', 'average', 'reset', 'reset_blocks', None"),
        ),
        ({"kind": "parameter_server", "optimizer_state": "average"}, "optimizer_state='average'"),
        ({"kind": "parameter_server", "averaging": "ema"}, "averaging="),
        ({"averaging": 1.0}, "averaging=1.0"),
        ({"averaging": "mean"}, "averaging='mean'"),
        ({"averaging": 0.9, "averaging_unit": "batches"}, "averaging_unit='batches'"),
        ({"averaging_unit": "steps"}, "averaging_unit='steps'"),
        ({"dtype": "fp8"}, "dtype='fp8'"),
        ({"kind": "parameter_server", "dtype": "int8"}, "dtype="),
        ({"kind": "commutative", "rule": "halving", "dtype": "int8"}, "dtype='int8'"),
        ({"kind": "commutative", "rule": "halving", "outer_optimizer": MOMENTUM}, "outer_opt"),
        ({"kind": "commutative", "rule": "halving", "quorum": 0.5}, "quorum=0.5"),
        (
            {"kind": "commutative", "quorum": 0, "averaging": "ema", "grace": "auto"},
            "grace= and averaging=",
        ),
        (
            {"kind": "commutative", "quorum": 0, "optimizer_state": "average"},
            "optimizer_state='average'",
        ),
        ({"rule": "trimmed", "trim": 0.5}, "trim=0.5"),
        ({"rule": "trimmed", "trim": 0}, "trim=0"),
        ({"trim": 0.1}, "trim=0.1"),
        ({"kind": "parameter_server", "rule": "trimmed"}, "rule='trimmed'"),
        ({"kind": "commutative", "quorum": 0, "rule": "trimmed"}, "quorum=0"),
        ({"kind": "auto", "quorum": 0}, "quorum="),
        ({"kind": "synchronous", "quorum": 0.5}, "quorum="),
        ({"kind": "parameter_server", "grace": 0.5}, "grace="),
        ({"quorum": 1.5}, "quorum=1.5"),
        ({"quorum": "most"}, "quorum='most'"),
        ({"grace": -1}, "grace=-1"),
        ({"grace": "often"}, "grace='often'"),
        ({"kind": "commutative", "outer_optimizer": {"optimizer": "sgd"}}, "needs a learning rate"),
        ({"outer_optimizer": {"optimizer": "sgd"}}, "outer_optimizer="),
        ({"outer_optimizer": {"optimizer": "sdg", "lr": 1}}, "unknown optimizer 'sdg'"),
    ],
    ids=str,
)
def test_wrong_merges(given, name, raises):
    with raises(ValueError, name):
        Merge(**given)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: PostLocal(epochs=0, then=2), "epochs=0"),
        (lambda: PostLocal(epochs=1, then=1.5), "then=1.5"),
        (lambda: Merge.of(None), "merge=None"),
        (lambda: Merge(outer_optimizer=3), "outer_optimizer=3"),
        *(
            (
                lambda value=value, unit=unit: fit(
                    trainer_of(NoTasks()), merge=Merge(every={0: 1, 1: 1, 2: value}.get, unit=unit)
                ),
                "every(2)=",
            )
            for value in (0, 1.0, True, None)
            for unit in ("epochs", "blocks", "batches")
        ),
    ],
)
def test_wrong_intervals_and_types(make, name, raises):
    with raises((ValueError, TypeError), name):
        make()


def test_post_local_sgd_merges_after_every_batch_until_an_epoch():
    assert [PostLocal(epochs=2, then=16)(epoch) for epoch in range(4)] == [1, 1, 16, 16]


@pytest.mark.parametrize("unit", ["epochs", "blocks", "batches"])
def test_a_function_that_is_a_number_is_that_number(shared_local, unit):
    lock = threading.Lock()  # which no other process can be sent
    trainers = trainer_of(), trainer_of(shared_local)
    fit(trainers[0], merge=Merge(every=2, unit=unit))
    fit(trainers[1], merge=Merge(every=lambda epoch: 2 if lock else 1, unit=unit))
    assert_same_bits(*(trainer.get_parameters() for trainer in trainers))


class Recording(NamedFits[dict]):
    """Returns the arguments of ``fit``."""

    def fit(self, x, y=None, **keywords):
        return keywords


def call(name, **options):
    return getattr(Recording(), name)(None, None, 3, 2, **options)


def kind_of(name):
    return "commutative" if "asynchronous" in name else "synchronous"


@pytest.mark.parametrize("name", FITS)
def test_what_a_name_fixes_is_refused(name):
    trainer = trainer_of(workers=1, net=mlp, optimizer=SGD)
    for keyword, value in {"shuffle": None, "callback_s": ()}.items():
        with pytest.raises(TypeError, match=keyword):
            getattr(trainer, name)(*blocked(*classification(), 2), 2, 1, **{keyword: value})
    with pytest.raises(
        ValueError, match=("num_batches_per_worker=2 and batch_size=3: give exactly one")
    ):
        getattr(trainer, name)(*blocked(*classification(), 2), 2, 1, batch_size=3)
    for field, value in {"kind": kind_of(name), "every": 1, "unit": "epochs"}.items():
        with pytest.raises(
            TypeError, match=rf"no Merge\({field}=...\): its name and .*kind='{kind_of(name)}'"
        ):
            call(name, merge=Merge(**{field: value}))


@pytest.mark.parametrize("name", FITS)
def test_merges_and_presets_go_with_a_name(name):
    kind = kind_of(name)
    every = {"n_epocs_sync": 3} if "n_epochs" in name else {}
    given = {"outer_optimizer": {"optimizer": "sgd", "lr": 1.0}, "dtype": "int8"}
    whole = {"every": every.get("n_epocs_sync", 1), "unit": "epochs", **given}
    assert call(name, merge=Merge(**given), **every)["merge"] == Merge(kind, **whole)
    if kind == "synchronous":
        assert call(name, merge=Merge("auto", **given), **every)["merge"] == Merge("auto", **whole)
        assert call(name, merge="slowmo")["merge"].kind == "slowmo"
    else:
        with pytest.raises(
            TypeError, match=r"takes no Merge\(kind=...\): its name .* kind='commutative'"
        ):
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
        trainer = DistributedTrainer(2, engine="serial", seed=3, threads=1)
        counting = Counting()
        trainer.build(mlp(), SGD, "cross_entropy")
        common = {
            "validation_data": (x, y),
            "callbacks": [counting],
            "sample_weight": weights,
            "max_time": 600,
        }
        common |= {"buffer": BufferSpec("FIFO", 64), "progress": False}
        n = {"n_epocs_sync": 2} if "n_epochs" in name else {}
        if by_name:
            results.append(getattr(trainer, name)(x, y, 2, 2, **n, **common))
        else:
            merge = "commutative" if "asynchronous" in name else "synchronous"
            shuffle = "total" if "shuffle" in name else "blocks"
            options = {"merge": Merge(merge, every=2 if n else 1), "shuffle": shuffle}
            results.append(
                trainer.fit(x, y, num_epochs=2, num_batches_per_worker=2, **options, **common)
            )
        assert counting.rounds == len(trainer.history) > 0
        assert all("val_loss" in record for record in trainer.history)
    assert_same_bits(*results)
