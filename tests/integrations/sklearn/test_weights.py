"""Weights of samples and of classes."""

import numpy as np
import pytest

from compss_train import DistributedTrainer
from tests.helpers.models import assert_close, assert_same_bits, classification, mlp, state_arrays
from tests.helpers.tolerances import sgd_error
from tests.integrations.sklearn.estimators import FAST_ADAM, classifier, regressor

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
    assert_same_bits(state_arrays(ours.module_), trainer.fit(X, Y, sample_weight=WEIGHTS, **options))


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


def test_weights_of_held_out_samples_are_held_out():
    estimator = classifier(validation_fraction=0.5).fit(X, Y, WEIGHTS + 1)
    assert estimator.history_[0]["samples"] == 30


@pytest.mark.parametrize(
    ("options", "weights", "message"),
    [
        ({}, np.zeros(len(X)), "sample_weight is zero for every sample"),
        ({}, np.ones(len(X) - 1), "sample_weight has 59 rows for 60 samples"),
        ({}, -np.ones(len(X)), "sample_weight holds negative"),
        ({"class_weight": {"d": 1}}, None, "are not in class_weight"),
        ({"class_weight": "fair"}, None, "balanced"),
    ],
)
def test_wrong_weights(options, weights, message):
    with pytest.raises(ValueError, match=message):
        classifier(**options).fit(X, NAMES, weights)


def test_balance_needs_all_samples():
    with pytest.raises(ValueError, match="class_weight='balanced' needs all samples at once; give a dict"):
        classifier(class_weight="balanced").partial_fit(X, Y, classes=[0, 1, 2])
