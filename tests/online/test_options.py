import itertools
import math
from dataclasses import fields

import numpy as np
import pandas as pd
import pytest

from compss_train import BufferSpec, Merge, Simulations
from compss_train._utils.validation import check_seconds
from compss_train.online.options import OnlineOptions, online_merge
from tests.helpers.models import named

PAIRED = BufferSpec("SimPairedReservoir", 40, sweep_size=5, nb_time_steps=4)


def simulate(_):
    yield 1.0


def pairing(earlier, later):
    return earlier, later


def options(**given):
    given = {
        "simulate": simulate,
        "inputs": [1],
        "buffer": BufferSpec("Reservoir", 40),
        "batch_size": 4,
    } | given
    simulations = Simulations(
        **{each.name: given.pop(each.name) for each in fields(Simulations) if each.name in given}
    )
    merge = online_merge(
        Merge(**{each.name: given.pop(each.name) for each in fields(Merge) if each.name in given})
    )
    return OnlineOptions(merge=merge, pairing=simulations.pairing, **given), simulations


ADDRESS = {"address": "tcp://127.0.0.1:5555", "token": "ours"}
SENDERS = {"simulate": None, "inputs": (), "senders": 1, **ADDRESS}


@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan, True, "1", [1]])
@pytest.mark.parametrize("name", ["record_every", "checkpoint_every", "timeout", "senders_timeout"])
def test_seconds_must_be_positive_numbers(name, value):
    with pytest.raises(ValueError, match=f"{name}=.*: give a number of seconds above 0"):
        options(**{name: value})
    assert check_seconds("x", 3) == 3.0


@pytest.mark.parametrize("value", [-1, 1.5, True, None, "2"])
@pytest.mark.parametrize(
    ("name", "least"),
    [
        *(("batch_size", 1), ("count", 1), ("max_batches", 1)),
        *(("every", 0), ("retries", 0), ("senders", 0)),
    ],
)
def test_counts_must_be_integers(name, least, value):
    if name in ("max_batches", "every") and value is None:
        return
    with pytest.raises(ValueError, match=f"{name}=.*: give an integer of at least {least}"):
        options(**{name: value})
    if least:
        with pytest.raises(ValueError, match=f"{name}=0: give an integer of at least 1"):
            options(**{name: 0})


@pytest.mark.parametrize(
    ("given", "error", "name"),
    [
        ({"buffer": "Reservoir"}, TypeError, "buffer='Reservoir'"),
        ({"buffer": PAIRED}, ValueError, "pairing=None with a SimPairedReservoir"),
        ({"pairing": pairing}, ValueError, "pairing="),
        ({"batch_size": 41}, ValueError, "a batch of 41 samples cannot come from"),
        ({"inputs": 3}, TypeError, "inputs=3"),
        ({"inputs": None}, TypeError, "inputs=None"),
        ({"every": 0}, ValueError, "give a number of batches of at least 1"),
        (
            {"every": lambda epoch: 1},
            ValueError,
            ("fit_online has no epochs that every= could depend on"),
        ),
        ({"kind": "commutative"}, ValueError, "fit_online merges through a parameter server"),
        ({"kind": "diloco"}, ValueError, "fit_online merges through a parameter server"),
        ({"unit": "epochs"}, ValueError, "whose unit is 'batches'"),
        ({"averaging": "ema"}, ValueError, "averaging="),
        ({"dtype": "int8"}, ValueError, "leave it out"),
        ({"simulate": 3}, TypeError, "simulate=3"),
        ({"simulate": None}, ValueError, "simulate=None with senders=0"),
        ({"senders": 1}, ValueError, "senders=1 need an address= to send to"),
        ({**SENDERS, "address": None}, ValueError, "need an address="),
        ({**SENDERS, "address": "localhost:5555"}, ValueError, "give tcp://HOST:PORT"),
        ({"address": "tcp://*:5555"}, ValueError, "give tcp://HOST:PORT"),
        *(
            (
                {**ADDRESS, "token": token},
                ValueError,
                f"token={token!r}: give a secret string that is not empty",
            )
            for token in ("", b"x", 7)
        ),
        ({**ADDRESS, "token": None}, ValueError, "address= needs token="),
        ({"token": "ours"}, ValueError, "token= without address="),
        ({"inputs": ()}, ValueError, "inputs= is empty"),
        ({"inputs": {2, 1}}, TypeError, "inputs={1, 2}"),
        ({"inputs": "study.csv"}, TypeError, "inputs='study.csv'"),
        ({"inputs": b"study.csv"}, TypeError, "inputs=b'study.csv'"),
        (
            {"inputs": pd.DataFrame({"a": [1.0]})},
            TypeError,
            "inputs= is a DataFrame, whose items are its columns",
        ),
        ({"inputs": np.ma.masked_array([1.0], True)}, TypeError, "inputs= is a masked array"),
        ({"pairing": 3}, TypeError, "pairing=3"),
        ({"lockstep": 1}, ValueError, "lockstep=1"),
        ({"count": 10**30}, ValueError, "count=1000000000000000000000000000000: give at most"),
        ({"inputs": np.zeros((0, 2))}, ValueError, "inputs= is empty"),
        ({**SENDERS, "inputs": [1]}, ValueError, "inputs= without simulate="),
        ({**SENDERS, "inputs": iter(())}, ValueError, "inputs= without simulate="),
        ({"optimizer_state": "lose"}, ValueError, "optimizer_state='lose'"),
        ({"optimizer_state": "average"}, ValueError, "optimizer_state='average'"),
        ({"outer_optimizer": {"optimizer": "sgd"}}, ValueError, "outer_optimizer="),
        ({"outer_optimizer": 3}, TypeError, "outer_optimizer=3"),
        (
            {"simulate": lambda _, it=itertools.count, gen=(n for n in ()): it},
            TypeError,
            "simulate",
        ),
    ],
    ids=named,
)
def test_invalid_options_raise(given, error, name, raises):
    with raises(error, name):
        options(**given)


def test_a_capacity_beyond_memory_is_an_error():
    with pytest.raises(ValueError, match=f"capacity={10**12}: so many samples, .*at most"):
        options(buffer=BufferSpec("FIFO", 10**12))
