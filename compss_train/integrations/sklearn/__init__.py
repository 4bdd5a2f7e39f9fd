"""Estimators with the interface of scikit-learn: a classifier and a regressor. Needs the extra ``sklearn``."""

# ruff: noqa: E402  the check comes before the modules that import scikit-learn

from compss_train._utils.imports import import_optional

import_optional("sklearn", extra="sklearn", needed_by="compss_train.integrations.sklearn", package="scikit-learn")

from compss_train.integrations.sklearn.classifier import DistributedClassifier
from compss_train.integrations.sklearn.parameters import EstimatorParameters
from compss_train.integrations.sklearn.regressor import DistributedRegressor

__all__ = ["DistributedClassifier", "DistributedRegressor", "EstimatorParameters"]
