"""The estimator checks of scikit-learn."""

import pytest
import torch
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

from tests.integrations.sklearn.estimators import classifier, regressor

SMALL = {"optimizer": {"optimizer": "adam", "lr": 0.03}, "num_epochs": 4, "hidden": (20,)}


@pytest.fixture(autouse=True)
def one_thread():
    """Small networks gain nothing from more, which wait for each other long where cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


WEIGHTS_AS_REPETITIONS = "check_sample_weight_equivalence_on_dense_data"


def expected_to_fail(estimator):
    """Return the checks that cannot pass, and why."""
    return {WEIGHTS_AS_REPETITIONS: "a sample of weight 2 is in one batch, one that comes twice may be in two"}


@parametrize_with_checks([classifier(**SMALL), regressor(**SMALL)], expected_failed_checks=expected_to_fail)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("make", [classifier, regressor])
def test_weights_equal_repetitions_in_a_single_batch(make):
    one_batch = make(num_workers=1, batch_size=1000, dtype="float64")
    getattr(estimator_checks, WEIGHTS_AS_REPETITIONS)(type(one_batch).__name__, one_batch)
