import pickle

import pytest
import torch

from compss_train.model.optimizers import optimizer_factory
from tests.helpers.models import mlp

DEFAULTS = {
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    "adamax": torch.optim.Adamax,
    "adadelta": torch.optim.Adadelta,
    "nadam": torch.optim.NAdam,
    "adamw": torch.optim.AdamW,
    "radam": torch.optim.RAdam,
}
PARAMETERS = [
    ("sgd", {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True}, {}),
    ("adam", {"epsilon": 0.1, "weight_decay": 0.2, "amsgrad": True}, {"eps": 0.1}),
    ("adam", {"beta_1": 0.5}, {"betas": (0.5, 0.999)}),
    ("adamax", {"beta_1": 0.5, "beta_2": 0.6}, {"betas": (0.5, 0.6)}),
    ("rmsprop", {"rho": 0.7}, {"alpha": 0.7}),
    ("adadelta", {"rho": 0.7, "epsilon": 0.1}, {"eps": 0.1}),
    (
        "nadam",
        {"schedule_decay": 0.01, "beta_2": 0.7},
        {"momentum_decay": 0.01, "betas": (0.9, 0.7)},
    ),
    ("adagrad", {"epsilon": 0.3}, {"eps": 0.3}),
    ("adam", {"betas": [0.5, 0.9], "eps": 0.1}, {"betas": (0.5, 0.9)}),
    ("adamw", {"beta_1": 0.5, "eps": 0.1, "weight_decay": 0.2}, {"betas": (0.5, 0.999)}),
    ("rmsprop", {"alpha": 0.7, "centered": True}, {}),
    ("sgd", {"momentum": 0.9, "dampening": 0.1}, {}),
    ("lbfgs", {"line_search_fn": "strong_wolfe"}, {}),
]
RENAMED = {"epsilon", "beta_1", "beta_2", "schedule_decay"}


@pytest.mark.parametrize("name", DEFAULTS)
def test_names_stand_for_torch_classes_with_their_defaults(name):
    optimizer = optimizer_factory({"optimizer": name, "lr": 0.03})(mlp().parameters())
    assert type(optimizer) is DEFAULTS[name]
    assert optimizer.defaults == DEFAULTS[name](mlp().parameters(), lr=0.03).defaults


@pytest.mark.parametrize(("name", "parameters", "translated"), PARAMETERS)
def test_parameters_have_torchs_names_or_eddls(name, parameters, translated):
    optimizer = optimizer_factory({"optimizer": name, "lr": 0.03, **parameters})(mlp().parameters())
    same = {
        key: value
        for key, value in parameters.items()
        if key not in {*RENAMED, *translated} and key in optimizer.defaults
    }
    for key, value in {**same, **translated}.items():
        assert optimizer.defaults[key] == value


def test_classes_and_callables_are_accepted_and_can_be_pickled():
    by_class = optimizer_factory({"optimizer": torch.optim.AdamW, "lr": 0.5, "betas": (0.1, 0.2)})
    optimizer = pickle.loads(pickle.dumps(by_class))(mlp().parameters())
    assert type(optimizer) is torch.optim.AdamW
    assert optimizer.defaults["betas"] == (0.1, 0.2)

    def make(parameters):
        return torch.optim.SGD(parameters, lr=0.1)

    assert optimizer_factory(make) is make


@pytest.mark.parametrize(
    ("spec", "error", "name"),
    [
        ({"optimizer": "sdg", "lr": 0.1}, ValueError, "unknown optimizer 'sdg'"),
        ({"optimizer": "adamm", "lr": 0.1}, ValueError, "Optimizer class"),
        ({"optimizer": "sgd", "learning_rate": 0.1}, ValueError, "; did you mean lr?"),
        ({"optimizer": "adamw", "lr": 0.1, "epsilom": 1}, ValueError, "did you mean epsilon?"),
        (
            {"optimizer": "adam", "lr": 0.1, "eps": 1, "epsilon": 1},
            ValueError,
            "epsilon and eps, two names of the same",
        ),
        (
            {"optimizer": "adam", "lr": 0.1, "beta_2": 0.9, "betas": (0.9, 0.99)},
            ValueError,
            "beta_2 and betas, two",
        ),
        ({"optimizer": "adam", "lr": 0.1, "betas": 0.9}, ValueError, "betas=0.9"),
        ({"optimizer": ["sgd"], "lr": 0.1}, ValueError, "unknown optimizer"),
        ({"lr": 0.1}, ValueError, "no 'optimizer' in the dict"),
        ({"optimizer": "sgd"}, ValueError, "'sgd' needs a learning rate"),
        ({"optimizer": "sgd", "lr": 0.1, "rho": 1}, ValueError, "; it takes lr, momentum"),
        (
            {"optimizer": "sgd", "lr": "0.1"},
            ValueError,
            "'sgd' takes numbers, and lr='0.1' is a string",
        ),
        ("sgd", TypeError, "optimizer='sgd' is neither a dict nor a callable"),
        (
            torch.optim.SGD([torch.ones(1)], lr=0.1),
            TypeError,
            "optimizer=<SGD> is neither a dict nor a callable",
        ),
        (None, TypeError, "neither a dict nor a callable"),
    ],
)
def test_invalid_specs_are_errors_with_the_accepted_values(spec, error, name, raises):
    with raises(error, name):
        optimizer_factory(spec)
