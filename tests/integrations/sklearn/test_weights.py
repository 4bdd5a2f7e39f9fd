"""Weights of samples and of classes."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from compss_train import DistributedTrainer
from tests.helpers.models import assert_close, assert_same_bits, classification, mlp, state_arrays
from tests.helpers.tolerances import output_error, sgd_error
from tests.integrations.sklearn.estimators import FAST_ADAM, classifier, digits, regressor

X, Y = classification()
NAMES = np.array(["a", "b", "c"])[Y]
SGD = {"optimizer": "sgd", "lr": 0.05}
# Of five epochs of one step, or one of a few; the hidden layer is 100 wide.
ROUNDING = sgd_error(np.float32, 5, 0.05, samples=32 + 100)
WEIGHTS = np.random.default_rng(0).integers(0, 4, len(X))


def test_sample_weights_are_those_of_the_trainer():
    ours = classifier(net=mlp(), optimizer=FAST_ADAM, num_epochs=2).fit(X, Y, list(WEIGHTS))
    trainer = DistributedTrainer(2, engine="serial", seed=0, threads=1)
    trainer.build(mlp(), FAST_ADAM, "cross_entropy")
    options = {"num_epochs": 2, "batch_size": 32, "shuffle": "total", "progress": False}
    assert_same_bits(
        state_arrays(ours.module_), trainer.fit(X, Y, sample_weight=WEIGHTS, **options)
    )


@pytest.mark.parametrize(
    ("class_weight", "of_samples"),
    [
        ({"a": 3.0, "c": 0.5}, np.array([3.0, 1.0, 0.5])[Y]),
        ("balanced", (len(Y) / (3 * np.bincount(Y)))[Y]),
    ],
)
def test_class_weights_equal_sample_weights(class_weight, of_samples):
    ours = classifier(class_weight=class_weight, optimizer=SGD).fit(X, NAMES)
    samples = classifier(optimizer=SGD).fit(X, NAMES, of_samples)
    assert_close(state_arrays(ours.module_), state_arrays(samples.module_), ROUNDING)


def test_partial_fits_use_weights():
    def fitted(weights):
        return state_arrays(regressor(optimizer=SGD).partial_fit(X, X[:, 0], weights).module_)

    assert_close(fitted(np.full(len(X), 5.0)), fitted(None), ROUNDING)
    only_one = np.eye(len(X))[3]
    assert_same_bits(fitted(only_one), fitted(only_one * 2))
    assert np.abs(fitted(only_one)["0.bias"] - fitted(None)["0.bias"]).max() > 1e-4


@pytest.mark.parametrize(
    ("options", "weights", "name"),
    [
        ({}, np.zeros(len(X)), "sample_weight is zero for every sample"),
        ({}, np.ones(len(X) - 1), "sample_weight has 59 rows for 60 samples"),
        ({}, -np.ones(len(X)), "sample_weight has negative"),
        ({"class_weight": {"d": 1}}, None, "are not in class_weight"),
        ({"class_weight": "fair"}, None, "balanced"),
    ],
)
def test_wrong_weights(options, weights, name, raises):
    with raises(ValueError, name):
        classifier(**options).fit(X, NAMES, weights)


def test_cross_validation_of_a_pipeline():
    x, y = digits(1797)
    scores = cross_val_score(
        make_pipeline(StandardScaler(), classifier(optimizer=FAST_ADAM)), x, y, cv=3
    )
    assert scores.mean() > 0.9


EPOCHS = "distributedclassifier__num_epochs"
OPTIMIZER = "distributedclassifier__optimizer"


def search(grid, n_jobs=None, **options):
    x, y = digits(300)
    pipeline = make_pipeline(
        StandardScaler(), classifier(hidden=(20,), optimizer=FAST_ADAM, **options)
    )
    return GridSearchCV(pipeline, grid, cv=2, n_jobs=n_jobs, refit=False).fit(x, y)


def test_a_grid_search_over_epochs_and_optimizers_or_their_options():
    found = search({EPOCHS: [1, 4], OPTIMIZER: [{"optimizer": "sgd", "lr": 1e-5}, FAST_ADAM]})
    assert found.best_params_ == {EPOCHS: 4, OPTIMIZER: FAST_ADAM}
    assert found.best_score_ > 0.7  # sgd as slow as that guesses: 0.1
    found = search(
        {OPTIMIZER: ["sgd"], f"{OPTIMIZER}__lr": [1e-5, 0.1], f"{OPTIMIZER}__momentum": [0.5]}
    )
    assert found.best_params_ == {
        OPTIMIZER: "sgd",
        f"{OPTIMIZER}__lr": 0.1,
        f"{OPTIMIZER}__momentum": 0.5,
    }


def test_options_are_parameters():
    estimator = classifier(optimizer="sgd", fit_options={"max_time": 60})
    assert estimator.get_params()["fit_options__max_time"] == 60
    estimator.set_params(optimizer__momentum=0.9, optimizer="adagrad", optimizer__lr=0.1, hidden=3)
    assert estimator.optimizer == {"optimizer": "adagrad", "momentum": 0.9, "lr": 0.1}
    again = clone(estimator)
    assert again.get_params()["optimizer__lr"] == 0.1
    assert again.set_params(build_options__precision="bf16").build_options == {"precision": "bf16"}
    with pytest.raises(
        TypeError, match=r"optimizer=<class .* is not a dict; give a dict or a name, such as 'sgd'"
    ):
        again.set_params(optimizer=torch.optim.SGD, optimizer__lr=0.1)
    with pytest.raises(ValueError, match="Invalid parameter 'hidden_size'"):
        again.set_params(hidden_size=3)


def test_a_grid_search_on_one_engine_finds_the_same(shared_local):
    here = search({EPOCHS: [1, 4]})
    there = search({EPOCHS: [1, 4]}, engine=shared_local)
    np.testing.assert_array_equal(
        there.cv_results_["mean_test_score"], here.cv_results_["mean_test_score"]
    )


class Net(nn.Sequential):
    def __init__(self, width=4, *, depth=1):
        layers = [
            nn.Linear(6, width),
            *(nn.Linear(width, width) for _ in range(depth)),
            nn.Linear(width, 3),
        ]
        super().__init__(*layers)


def test_a_search_has_the_arguments_of_a_class_of_networks():
    grid = {"net_options__width": [2, 8], "optimizer__lr": [0.01, 0.1]}
    found = GridSearchCV(
        classifier(net=Net, net_options={"depth": 2}, optimizer="sgd"), grid, cv=2
    ).fit(X, Y)
    best = found.best_estimator_
    assert best.net_options == {"depth": 2, "width": found.best_params_["net_options__width"]}
    assert best.module_[0].out_features == best.net_options["width"]
    assert len(best.module_) == 4
    assert (
        classifier(
            net=lambda inputs, outputs, bias: nn.Linear(inputs, outputs, bias),
            net_options={"bias": False},
        )
        .fit(X, Y)
        .module_.bias
        is None
    )
    assert classifier(net=nn.Linear, net_options={"bias": False}).fit(X, Y).module_.bias is None
    with pytest.raises(TypeError, match="are for net=, a class or a function"):
        classifier(net_options={"width": 3}).fit(X, Y)


SMALL = {"optimizer": {"optimizer": "adam", "lr": 0.03}, "num_epochs": 4, "hidden": (20,)}


@pytest.fixture(autouse=True)
def one_thread():
    """Small networks gain nothing from more, which wait for each other long where cores are
    shared.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


WEIGHTS_AS_REPETITIONS = "check_sample_weight_equivalence_on_dense_data"
OTHER_BATCHES = ("check_methods_sample_order_invariance", "check_methods_subset_invariance")


def expected_to_fail(estimator):
    """Return the checks that cannot pass, or not on every processor, and why."""
    rounding = (
        "single precision rounds by the size of the batch and the place in it, by more "
        "than the check allows"
    )
    weights = "a sample of weight 2 is in one batch, one that comes twice may be in two"
    return {WEIGHTS_AS_REPETITIONS: weights, **dict.fromkeys(OTHER_BATCHES, rounding)}


@parametrize_with_checks([classifier(**SMALL)], expected_failed_checks=expected_to_fail)
def test_classifiers_pass_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.slow  # nearly all of them are those of classifiers
@parametrize_with_checks([regressor(**SMALL)], expected_failed_checks=expected_to_fail)
def test_regressors_pass_scikit_learns_checks(estimator, check):
    check(estimator)


def run_check(name, estimator):
    getattr(estimator_checks, name)(type(estimator).__name__, estimator)


@pytest.mark.parametrize("make", [classifier, regressor])
def test_weights_equal_repetitions_in_a_single_batch(make):
    run_check(WEIGHTS_AS_REPETITIONS, make(num_workers=1, batch_size=1000, dtype="float64"))


@pytest.mark.parametrize("make", [classifier, regressor])
@pytest.mark.parametrize("name", OTHER_BATCHES)
def test_predictions_in_other_batches_differ_by_rounding_only(make, name):
    run_check(name, make(**SMALL, dtype="float64"))
    fitted = make(**SMALL).fit(X, Y == 1)
    outputs = getattr(fitted, "decision_function", fitted.predict)
    whole = outputs(X)
    alone = np.concatenate([outputs(X[row : row + 1]) for row in reversed(range(len(X)))])
    np.testing.assert_allclose(alone[::-1], whole, rtol=0, atol=2 * output_error(fitted.module_, X))
