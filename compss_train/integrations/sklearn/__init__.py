"""Estimators with the interface of scikit-learn: a classifier and a regressor.

They need the extra ``sklearn``.
"""

# ruff: noqa: E402  the check comes before the modules that import scikit-learn

from compss_train._utils.imports import import_optional

import_optional(
    "sklearn",
    extra="sklearn",
    needed_by="compss_train.integrations.sklearn",
    package="scikit-learn",
)

from compss_train.integrations.sklearn.base import DistributedEstimator
from compss_train.integrations.sklearn.estimators import DistributedClassifier, DistributedRegressor

__all__ = ["DistributedClassifier", "DistributedEstimator", "DistributedRegressor"]
