"""The trainer with scikit-learn's interface: a classifier and a regressor. Needs the extra ``sklearn``."""

try:
    import sklearn  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "sklearn":
        raise
    hint = "the estimators need scikit-learn: pip install 'compss_train[sklearn]'"
    raise ModuleNotFoundError(hint, name="sklearn") from error

from compss_train.integrations.sklearn.classifier import DistributedClassifier
from compss_train.integrations.sklearn.constructor import EstimatorParameters
from compss_train.integrations.sklearn.regressor import DistributedRegressor

__all__ = ["DistributedClassifier", "DistributedRegressor", "EstimatorParameters"]
