"""scikit-learn's own checks of estimators."""

import pytest
import torch
from sklearn.utils.estimator_checks import parametrize_with_checks

from tests.estimators.estimators import FAST_ADAM, classifier, regressor

SMALL = {"optimizer": FAST_ADAM, "num_epochs": 10, "hidden": (20,)}


@pytest.fixture(autouse=True)
def one_thread():
    """Small networks gain nothing from more, which wait for each other long where cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@parametrize_with_checks([classifier(**SMALL), regressor(**SMALL)])
def test_scikit_learns_checks(estimator, check):
    check(estimator)
