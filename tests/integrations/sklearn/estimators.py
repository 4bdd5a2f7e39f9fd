"""Estimators that train quickly, and data for them."""

from sklearn.datasets import load_digits

from compss_train import DistributedClassifier, DistributedRegressor

QUICK = {"engine": "serial", "threads": 1, "num_epochs": 5, "random_state": 0}
FAST_ADAM = {"optimizer": "adam", "lr": 0.01}


def classifier(**options):
    return DistributedClassifier(**{**QUICK, **options})


def regressor(**options):
    return DistributedRegressor(**{**QUICK, **options})


def digits(samples: int = 600):
    x, y = load_digits(return_X_y=True)
    return x[:samples] / 16, y[:samples]
