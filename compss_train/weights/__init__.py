"""Weights of samples and of classes in the loss that is trained on."""

from compss_train.weights.classes import ClassWeight, check_class_weight
from compss_train.weights.loss import TrainingLoss
from compss_train.weights.reduction import check_weightable

__all__ = ["ClassWeight", "TrainingLoss", "check_class_weight", "check_weightable"]
