"""Estimators in pipelines and searches."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_diabetes
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tests.integrations.sklearn.estimators import FAST_ADAM, classifier, digits, regressor


def test_cross_validation_of_a_pipeline():
    x, y = digits(1797)
    scores = cross_val_score(make_pipeline(StandardScaler(), classifier(optimizer=FAST_ADAM)), x, y, cv=3)
    assert scores.mean() > 0.9


def test_a_regressor_whose_targets_are_scaled():
    x, y = load_diabetes(return_X_y=True, scaled=False)
    pipeline = make_pipeline(StandardScaler(), regressor(optimizer=FAST_ADAM, num_epochs=10))
    scaled = TransformedTargetRegressor(pipeline, transformer=StandardScaler())
    assert cross_val_score(scaled, x, y, cv=3).mean() > 0.35


EPOCHS, OPTIMIZER = "distributedclassifier__num_epochs", "distributedclassifier__optimizer"


def search(grid, n_jobs=None, **options):
    x, y = digits(300)
    pipeline = make_pipeline(StandardScaler(), classifier(hidden=(20,), optimizer=FAST_ADAM, **options))
    return GridSearchCV(pipeline, grid, cv=2, n_jobs=n_jobs, refit=False).fit(x, y)


def test_a_grid_search_over_epochs_and_optimizers_or_their_options():
    found = search({EPOCHS: [1, 4], OPTIMIZER: [{"optimizer": "sgd", "lr": 1e-5}, FAST_ADAM]})
    assert found.best_params_ == {EPOCHS: 4, OPTIMIZER: FAST_ADAM}
    assert found.best_score_ > 0.7  # sgd as slow as that guesses: 0.1
    found = search({OPTIMIZER: ["sgd"], f"{OPTIMIZER}__lr": [1e-5, 0.1], f"{OPTIMIZER}__momentum": [0.5]})
    assert found.best_params_ == {OPTIMIZER: "sgd", f"{OPTIMIZER}__lr": 0.1, f"{OPTIMIZER}__momentum": 0.5}


def test_options_are_parameters():
    estimator = classifier(optimizer="sgd", fit_options={"max_time": 60})
    assert estimator.get_params()["fit_options__max_time"] == 60
    estimator.set_params(optimizer__momentum=0.9, optimizer="adagrad", optimizer__lr=0.1, hidden=3)
    assert estimator.optimizer == {"optimizer": "adagrad", "momentum": 0.9, "lr": 0.1}
    again = clone(estimator)
    assert again.get_params()["optimizer__lr"] == 0.1
    assert again.set_params(build_options__precision="bf16").build_options == {"precision": "bf16"}
    with pytest.raises(TypeError, match=r"optimizer=<class .* is not a dict; give a dict or a name, such as 'sgd'"):
        again.set_params(optimizer=torch.optim.SGD, optimizer__lr=0.1)
    with pytest.raises(ValueError, match="Invalid parameter 'hidden_size'"):
        again.set_params(hidden_size=3)


def test_a_grid_search_on_one_engine_finds_the_same(shared_local):
    here, there = search({EPOCHS: [1, 4]}), search({EPOCHS: [1, 4]}, engine=shared_local)
    np.testing.assert_array_equal(there.cv_results_["mean_test_score"], here.cv_results_["mean_test_score"])


@pytest.mark.slow
def test_a_grid_search_in_processes_finds_the_same():
    here, there = search({EPOCHS: [4]}), search({EPOCHS: [4]}, n_jobs=2, engine="local")
    np.testing.assert_array_equal(there.cv_results_["mean_test_score"], here.cv_results_["mean_test_score"])
