import pickle

import numpy as np
import pytest
import torch

from compss_train.exceptions import DivergedError
from compss_train.model.delayed_nesterov import DelayedNesterov, step_on_arrival
from compss_train.model.optimizers import optimizer_factory
from tests.helpers.models import assert_same_bits, mlp
from tests.helpers.tolerances import sum_error

DEFAULTS = {
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    "adamax": torch.optim.Adamax,
    "adadelta": torch.optim.Adadelta,
    "nadam": torch.optim.NAdam,
}
GIVEN = [
    ("sgd", {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True}, {}),
    ("adam", {"epsilon": 0.1, "weight_decay": 0.2, "amsgrad": True}, {"eps": 0.1}),
    ("adam", {"beta_1": 0.5}, {"betas": (0.5, 0.999)}),
    ("adamax", {"beta_1": 0.5, "beta_2": 0.6}, {"betas": (0.5, 0.6)}),
    ("rmsprop", {"rho": 0.7}, {"alpha": 0.7}),
    ("adadelta", {"rho": 0.7, "epsilon": 0.1}, {"eps": 0.1}),
    ("nadam", {"schedule_decay": 0.01, "beta_2": 0.7}, {"momentum_decay": 0.01, "betas": (0.9, 0.7)}),
    ("adagrad", {"epsilon": 0.3}, {"eps": 0.3}),
]
RENAMED = {"epsilon", "beta_1", "beta_2", "schedule_decay"}


@pytest.mark.parametrize("name", DEFAULTS)
def test_names_stand_for_torch_classes_with_their_defaults(name):
    made = optimizer_factory({"optimizer": name, "lr": 0.03})(mlp().parameters())
    assert type(made) is DEFAULTS[name]
    assert made.defaults == DEFAULTS[name](mlp().parameters(), lr=0.03).defaults


@pytest.mark.parametrize(("name", "given", "torchs"), GIVEN)
def test_parameters_have_eddls_names(name, given, torchs):
    made = optimizer_factory({"optimizer": name, "lr": 0.03, **given})(mlp().parameters())
    same = {key: value for key, value in given.items() if key not in RENAMED and key in made.defaults}
    for key, value in {**same, **torchs}.items():
        assert made.defaults[key] == value


def test_classes_and_callables_are_accepted_and_can_be_pickled():
    by_class = optimizer_factory({"optimizer": torch.optim.AdamW, "lr": 0.5, "betas": (0.1, 0.2)})
    made = pickle.loads(pickle.dumps(by_class))(mlp().parameters())
    assert type(made) is torch.optim.AdamW
    assert made.defaults["betas"] == (0.1, 0.2)

    def make(parameters):
        return torch.optim.SGD(parameters, lr=0.1)

    assert optimizer_factory(make) is make


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ({"optimizer": "sdg", "lr": 0.1}, ValueError, "unknown optimizer 'sdg'; choose one of adam, sgd"),
        ({"optimizer": "adamm", "lr": 0.1}, ValueError, r"Optimizer class; did you mean adam\?"),
        ({"optimizer": "sgd", "learning_rate": 0.1}, ValueError, r"it takes lr, .*; did you mean lr\?"),
        ({"optimizer": "adam", "lr": 0.1, "eps": 1}, ValueError, r"did you mean epsilon\?"),
        ({"optimizer": ["sgd"], "lr": 0.1}, ValueError, "unknown optimizer"),
        ({"lr": 0.1}, ValueError, "no 'optimizer' in the dict"),
        ({"optimizer": "sgd"}, ValueError, "'sgd' needs a learning rate"),
        ({"optimizer": "sgd", "lr": 0.1, "rho": 1}, ValueError, r"no parameter \['rho'\]; it takes lr, momentum"),
        ({"optimizer": "sgd", "lr": "0.1"}, ValueError, "'sgd' takes numbers, and lr='0.1' is a string"),
        ("sgd", TypeError, "optimizer='sgd' is neither a dict nor a callable"),
        (torch.optim.SGD([torch.ones(1)], lr=0.1), TypeError, "optimizer=<SGD> is neither a dict nor a callable"),
        (None, TypeError, "neither a dict nor a callable"),
    ],
)
def test_invalid_specs_are_errors_with_the_accepted_values(spec, error, message):
    with pytest.raises(error, match=message):
        optimizer_factory(spec)


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


def test_a_saved_state_of_this_optimizer_is_continued():
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
