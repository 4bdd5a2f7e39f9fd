"""``Merge``: what it accepts, and how what is left out is filled."""

import pytest

from compss_train import Merge
from compss_train.training.merge import DEFAULTS, PostLocal

MOMENTUM = {"optimizer": "sgd", "lr": 0.7, "momentum": 0.9}


def test_what_is_left_out_is_filled():
    assert Merge().filled() == Merge("synchronous", 1, "epochs", None, "keep", None, None, "weighted") == DEFAULTS
    given = Merge("commutative", every=PostLocal(epochs=1, then=2), rule="halving")
    assert given.filled(Merge(every=3, unit="batches")).filled() == Merge(
        "commutative", PostLocal(epochs=1, then=2), "batches", None, "keep", None, None, "halving"
    )
    assert Merge.of("auto").preset == "auto"
    assert Merge.of(given) is given
    assert given.preset is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"kind": "async"},
            "merge='async': choose one of 'synchronous', 'commutative', 'parameter_server'",
        ),
        ({"every": -1}, "every=-1: give an integer of at least 0"),
        ({"every": 1.5}, "every=1.5: give an integer of at least 0"),
        ({"unit": "samples"}, "unit='samples': choose one of 'epochs', 'blocks', 'batches', None"),
        ({"every": 0, "unit": "batches"}, "give a number of batches of at least 1"),
        ({"kind": "auto", "every": 2}, r"Merge\('auto'\) chooses every= and unit= together"),
        ({"rule": "mean"}, "rule='mean': choose one of 'weighted', 'halving'"),
        ({"kind": "synchronous", "rule": "halving"}, r"rule='halving' belongs to Merge\('commutative'\)"),
        ({"kind": "parameter_server", "rule": "halving"}, r"rule='halving' belongs to Merge\('commutative'\)"),
        ({"optimizer_state": "lose"}, "choose one of 'keep', 'average', 'reset', 'reset_blocks', None"),
        ({"kind": "commutative", "optimizer_state": "average"}, r"belongs to Merge\('synchronous'\), not to"),
        ({"kind": "parameter_server", "averaging": "ema"}, r"averaging= belongs to Merge\('synchronous'\)"),
        ({"averaging": 1.0}, "averaging=1.0: give a number above 0 and below 1"),
        ({"averaging": "mean"}, "averaging='mean': choose one of 'ema', 'a decay between 0 and 1', None"),
        ({"dtype": "fp8"}, "dtype='fp8': choose one of 'bf16', 'int8', None"),
        ({"kind": "parameter_server", "dtype": "int8"}, "leave dtype= out"),
        ({"kind": "commutative", "rule": "halving", "dtype": "int8"}, "leave dtype= out"),
        ({"kind": "commutative", "rule": "halving", "outer_optimizer": MOMENTUM}, "has no outer optimizer"),
        (
            {"kind": "commutative", "outer_optimizer": {"optimizer": "adam", "lr": 1.0}},
            'outer_optimizer=.*take merge="synchronous"',
        ),
        ({"kind": "commutative", "outer_optimizer": MOMENTUM}, 'add "nesterov": True'),
        (
            {"kind": "commutative", "outer_optimizer": {"optimizer": "sgd", "lr": -1.0}},
            "lr=-1.0: give a number of at least 0",
        ),
        ({"kind": "commutative", "outer_optimizer": {"optimizer": "sgd"}}, "needs a learning rate"),
        ({"outer_optimizer": {"optimizer": "sgd"}}, "outer_optimizer=.*: optimizer 'sgd' needs a learning rate"),
        ({"outer_optimizer": {"optimizer": "sdg", "lr": 1}}, "unknown optimizer 'sdg'"),
        ({"kind": "commutative", "averaging": "ema"}, r"averaging= belongs to Merge\('synchronous'\)"),
    ],
    ids=str,
)
def test_wrong_merges(given, message):
    with pytest.raises(ValueError, match=message):
        Merge(**given)


def test_other_values_are_no_merges():
    with pytest.raises(TypeError, match="merge=None: give a kind by name, such as 'synchronous', or a Merge"):
        Merge.of(None)
    with pytest.raises(TypeError, match=r"outer_optimizer=3: .* is neither a dict nor a callable"):
        Merge(outer_optimizer=3)
