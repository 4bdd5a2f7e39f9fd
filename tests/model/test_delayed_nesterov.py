"""Steps with the changes of workers that arrive one at a time, against the formula of the paper."""

import numpy as np
import pytest
import torch

from compss_train.exceptions import DivergedError
from compss_train.model import parameters as params
from compss_train.model.delayed_nesterov import DelayedNesterov, step_on_arrival
from compss_train.model.metrics import Measured
from tests.helpers.models import assert_same_bits, named
from tests.helpers.tolerances import sum_error

OUTER = DelayedNesterov(0.7, 0.9)
COUNTS = (1, 2, 3)
TOTAL = sum(COUNTS)
ROUNDING = sum_error(np.float32, 40, 10.0)  # of up to nine arrivals and three steps with momentum


def arrive(current, base, trained, count, optimizer=OUTER, workers=3, buffers=("v",)):
    return step_on_arrival(current, optimizer, base, trained, count, TOTAL, workers, buffers)


def versions(number, dtype=np.float32):
    random = np.random.default_rng(1)
    return [
        {
            "w": random.normal(size=50).astype(dtype),
            "z": random.normal(size=5).astype(np.complex64),
            "v": random.uniform(size=4).astype(dtype),
            "n": np.array(random.integers(100)),
        }
        for _ in range(number)
    ]


@pytest.mark.parametrize("order", [(0, 1, 2) * 3, (2, 0, 1, 1, 0, 2, 0, 2, 1), (0, 0, 0, 1, 1, 2, 1, 2, 2)])
def test_any_order_of_arrivals_follows_the_formula_of_the_paper(order):
    """θ -= lr g at once; every third arrival m = β m + Σ g and θ -= lr β m; bases are as old as the workers."""
    start, *changes = versions(10)
    current, bases = start, [start] * 3
    expected, m, gathered = start["w"].astype(np.float64), 0.0, 0.0
    for arrival, (worker, change) in enumerate(zip(order, changes, strict=True), 1):
        base = bases[worker]
        current = bases[worker] = arrive(current, base, {**change, "w": base["w"] + change["w"]}, COUNTS[worker])
        gradient = -(COUNTS[worker] / TOTAL) * change["w"].astype(np.float64)
        gathered += gradient
        expected -= 0.7 * gradient
        if arrival % 3 == 0:
            m, gathered = 0.9 * m + gathered, 0.0
            expected -= 0.7 * 0.9 * m
        np.testing.assert_allclose(current["w"], expected, rtol=0, atol=ROUNDING)
    assert current.outer["arrivals"] == 0


def test_statistics_and_integers_are_merged_as_without_optimizer():
    base, *trained = versions(4)
    ours = plain = base
    for result, count in zip(trained, COUNTS, strict=True):
        ours = arrive(ours, base, result, count)
        plain = params.apply_delta(plain, base, result, count, TOTAL, {"v"})
    for name in "vn":
        assert ours[name].tobytes() == plain[name].tobytes()
    assert set(ours.outer["momentum"]) == {"w", "z"}


def test_a_worker_without_samples_changes_nothing():
    base, trained, later = versions(3)
    current = arrive(base, base, trained, 2)
    assert arrive(current, base, later, [Measured()]) is current


def test_arguments_stay_as_they_are():
    """A task may be run again: what it gets must not change."""
    base, trained = versions(2)
    once = arrive(base, base, trained, 2, workers=1)
    before = {name: array.copy() for name, array in once.outer["momentum"].items()}
    again = [arrive(once, once, trained, 3, workers=1) for _ in range(2)]
    assert_same_bits(*again)
    assert_same_bits(again[0].outer["momentum"], again[1].outer["momentum"])
    assert_same_bits(once.outer["momentum"], before)


def test_a_saved_state_is_continued_unless_it_is_of_another_optimizer():
    base, *trained = versions(6)
    whole = base
    for result in trained[:4]:
        whole = arrive(whole, base, result, 1)
    resumed = OUTER.starting(dict(whole), whole.outer)
    ours, theirs = (arrive(start, base, trained[4], 1) for start in (resumed, whole))
    assert ours["w"].tobytes() == theirs["w"].tobytes()
    assert_same_bits(ours.outer["momentum"], theirs.outer["momentum"])
    assert OUTER.starting(base, {"kind": "SGD", "state": {}}) is base
    assert DelayedNesterov(1.0).starting(base, whole.outer) is base


def test_a_step_that_diverges_is_an_error():
    base, trained = versions(2)
    with pytest.raises(DivergedError, match="outer_optimizer= made 'w' NaN or infinite"):
        arrive(base, base, {**trained, "w": trained["w"] * np.float32(1e38)}, 6, DelayedNesterov(1e3, 0.9))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"optimizer": "adam", "lr": 0.1}, 'take merge="synchronous" for other optimizers'),
        ({"optimizer": "sgd", "lr": 0.1, "weight_decay": 0.1}, "plain SGD or Nesterov momentum"),
        (list, "plain SGD or Nesterov momentum"),
        ({"optimizer": "sgd", "lr": 0.7, "momentum": 0.9}, '"nesterov": True'),
        ({"optimizer": "sgd", "lr": torch.tensor(0.7)}, "give a number of at least 0"),
    ],
    ids=named,
)
def test_other_optimizers_are_rejected(spec, message):
    with pytest.raises(ValueError, match=message):
        DelayedNesterov.of(spec)
