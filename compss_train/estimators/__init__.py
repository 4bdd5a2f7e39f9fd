"""The trainer with scikit-learn's interface: a classifier and a regressor. Needs the extra ``sklearn``."""

try:
    import sklearn  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "sklearn":
        raise
    hint = "the estimators need scikit-learn: pip install 'compss_train[sklearn]'"
    raise ModuleNotFoundError(hint, name="sklearn") from error

from compss_train.estimators.classifier import DistributedClassifier
from compss_train.estimators.constructor import EstimatorParameters
from compss_train.estimators.regressor import DistributedRegressor

__all__ = ["DistributedClassifier", "DistributedRegressor", "EstimatorParameters"]
