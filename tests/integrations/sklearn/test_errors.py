"""Invalid parameters and data are errors before training, and failed fits leave nothing behind."""

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError
from torch import nn

from compss_train import DistributedClassifier, FileDataset, write_files
from tests.helpers.callbacks import NoTasks
from tests.helpers.models import blocked, classification, mlp
from tests.integrations.sklearn.estimators import classifier, regressor

X, Y = classification()


@pytest.mark.parametrize(
    ("options", "error", "name"),
    [
        ({"net": "mlp"}, TypeError, "'mlp' is not a callable object"),
        ({"net": lambda inputs, outputs: 3}, TypeError, "net must be a torch.nn.Module, not int"),
        (
            {"net": mlp(outputs=4)},
            ValueError,
            ("outputs of shape (4,) for a sample, but 3 numbers are needed"),
        ),
        ({"net": nn.Linear(5, 3)}, RuntimeError, "mat1 and mat2 shapes cannot be multiplied"),
        ({"hidden": "10"}, ValueError, "hidden='10'"),
        ({"hidden": 0}, ValueError, "hidden=0"),
        ({"hidden": True}, ValueError, "hidden=True"),
        ({"hidden": (10, 0)}, ValueError, "hidden=0"),
        ({"optimizer": {"optimizer": "adamm", "lr": 1}}, ValueError, "unknown optimizer 'adamm'"),
        ({"optimizer": "adamm"}, ValueError, "unknown optimizer 'adamm'"),
        ({"optimizer": 3}, TypeError, "optimizer=3 is neither a dict nor a callable"),
        (
            {"optimizer": {"optimizer": "sgd", "lr": 1}, "lr": 0.1},
            ValueError,
            ("learning rate in one of them"),
        ),
        (
            {"optimizer": torch.optim.SGD, "lr": 0.1},
            ValueError,
            ("lr=0.1 is for an optimizer with a name"),
        ),
        ({"schedule": "cosin"}, ValueError, "unknown schedule 'cosin'"),
        ({"schedule": 3}, TypeError, "schedule=3 is not callable"),
        ({"schedule": "cosine", "build_options": {"schedule": None}}, TypeError, "multiple values"),
        ({"loss": "crossentropy"}, ValueError, "unknown loss 'crossentropy'"),
        ({"num_workers": 0}, ValueError, "num_workers=0"),
        ({"num_epochs": 0}, ValueError, "num_epochs=0"),
        ({"random_state": -1}, ValueError, "seed=-1"),
        ({"random_state": "a"}, ValueError, "'a' cannot be used to seed"),
        ({"validation_fraction": 1.5}, ValueError, "validation_fraction=1.5"),
        ({"validation_fraction": 1}, ValueError, "validation_fraction=1"),
        ({"n_iter_no_change": 0}, ValueError, "patience=0"),
        (
            {"validation_fraction": 0.1, "fit_options": {"validation_data": (X, Y)}},
            TypeError,
            ("multiple values"),
        ),
        (
            {"fit_options": {"num_epochs": 3}},
            TypeError,
            ("multiple values for keyword argument 'num_epochs'"),
        ),
        (
            {"fit_options": {"shuffle": None}},
            TypeError,
            ("multiple values for keyword argument 'shuffle'"),
        ),
        (
            {"fit_options": {"callbacks": ()}},
            TypeError,
            ("multiple values for keyword argument 'callbacks'"),
        ),
        ({"fit_options": {"epochs": 3}}, TypeError, "unexpected keyword argument 'epochs'"),
        ({"build_options": {"device": 1}}, TypeError, "unexpected keyword argument 'device'"),
        ({"callbacks": [print]}, TypeError, "which is not a Callback"),
    ],
)
def test_wrong_parameters(options, error, name, raises):
    with raises(error, name):
        DistributedClassifier(**{"engine": NoTasks(), "threads": 1, **options}).fit(X, Y)


def test_wrong_data(tmp_path):
    estimator = DistributedClassifier(engine=NoTasks(), threads=1)
    write_files(tmp_path, {"x": X, "y": Y}, rows=20)
    for x in (blocked(X, Y, 2)[0], FileDataset(f"{tmp_path}/*.npz")):
        with pytest.raises(
            TypeError, match=(f"X is a {type(x).__name__}; give an array, or train on it with Dist")
        ):
            estimator.fit(x, Y)
    with pytest.raises(ValueError, match=r"y has only one class, np\.str_\('a'\)"):
        estimator.fit(X, ["a"] * len(X))
    with pytest.raises(ValueError, match="Unknown label type"):
        estimator.fit(X, X[:, 0])
    with pytest.raises(ValueError, match="Found array with dim 4"):
        estimator.fit(X.reshape(-1, 6, 1, 1), Y)
    with pytest.raises(ValueError, match="classes must be passed on the first call to partial_fit"):
        estimator.partial_fit(X, Y)
    with pytest.raises(ValueError, match="previously unseen labels"):
        estimator.partial_fit(X, Y, classes=[0, 1])
    with pytest.raises(ValueError, match="are not those of the first call"):
        classifier().partial_fit(X, Y, classes=[0, 1, 2]).partial_fit(X, Y, classes=[0, 1])
    with pytest.raises(
        ValueError, match=("X has 4 features, but DistributedClassifier is expecting 6 features")
    ):
        classifier().fit(X, Y).predict(X[:, :4])
    with pytest.raises(
        ValueError, match=r"targets of shape \(2,\), but those of the first fit had \(\)"
    ):
        regressor().fit(X, X[:, 0]).partial_fit(X, X[:, :2])


@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function"])
def test_not_fitted(method):
    with pytest.raises(
        NotFittedError, match=("This DistributedClassifier instance is not fitted yet")
    ):
        getattr(classifier(), method)(X)


def test_invalid_data_leave_the_fitted_network():
    estimator = classifier().fit(X, Y)
    before = estimator.predict(X)
    with pytest.raises(ValueError, match="contains NaN"):
        estimator.fit(np.full_like(X, np.nan), Y)
    np.testing.assert_array_equal(estimator.predict(X), before)
