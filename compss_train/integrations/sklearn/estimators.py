"""``DistributedClassifier``, with an output for each class, and ``DistributedRegressor``."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.preprocessing import LabelEncoder
from sklearn.utils import Tags
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from torch import nn

from compss_train.integrations.sklearn.base import DistributedEstimator
from compss_train.model import losses
from compss_train.model.resolving import MetricSpec


@dataclass(eq=False, repr=False)
class DistributedClassifier(ClassifierMixin, DistributedEstimator):  # type: ignore[misc]
    """A scikit-learn classifier whose network ``DistributedTrainer`` trains.

    The parameters are those of ``DistributedEstimator``; by default the loss is ``"cross_entropy"``
    and the metric ``"accuracy"``. The network must return probabilities for
    ``categorical_cross_entropy``, their logarithms for ``nn.NLLLoss``, and logits for other losses.

    ``class_weight`` are weights in the loss: a dict from labels to weights (1 for missing labels),
    ``"balanced"`` for weights inversely proportional to class frequencies, or ``None``.

    y has one label of any type per sample.

    ``classes_`` are the labels in the order of the outputs; the other attributes are in
    ``DistributedEstimator``.
    """

    loss: str | losses.BatchFunction = "cross_entropy"
    metric: MetricSpec = "accuracy"
    class_weight: Mapping[Any, float] | str | None = None

    classes_: NDArray[Any] = field(init=False)

    def partial_fit(
        self, X: Any, y: Any = None, classes: Any = None, sample_weight: Any = None
    ) -> Self:
        """Train for one more epoch on these samples. Give the first call all ``classes``."""
        if isinstance(self.class_weight, str):
            raise ValueError(
                f"class_weight={self.class_weight!r} needs all samples at once; give a dict instead"
            )
        warm_start = self.__sklearn_is_fitted__()
        if not warm_start and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit.")
        repeats = warm_start and classes is not None
        if repeats and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(
                f"classes={classes!r} are not those of the first call, {self.classes_}; omit them"
            )
        return self._train(
            X, y, sample_weight, num_epochs=1, warm_start=warm_start, classes=classes
        )

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the predicted label of each sample."""
        numbers = self._predict_outputs(X).argmax(axis=1)  # an error until fit has set classes_
        return np.asarray(self.classes_[numbers])

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Return the probability of each class, in the order of ``classes_``.

        The shape is (samples, classes).
        """
        return np.asarray(np.exp(log_probabilities(self._predict_outputs(X), self.loss)))

    def decision_function(self, X: Any) -> NDArray[Any]:
        """Return the log probabilities, shape (samples, classes).

        For two classes: the difference of the second and the first one, shape (samples,).
        """
        scores = log_probabilities(self._predict_outputs(X), self.loss)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def _encode_targets(self, x: Any, y: Any, labels: Any) -> tuple[Any, int]:
        """Return labels as class indices, and the number of classes; set ``classes_``."""
        labels = self.classes_ if labels is None else labels
        check_classification_targets(labels)
        encoder = LabelEncoder().fit(labels)
        if len(encoder.classes_) < 2:
            raise ValueError(
                f"y has only one class, {encoder.classes_[0]!r}; a classifier needs at least two"
            )
        self.classes_ = encoder.classes_
        return encoder.transform(y), len(self.classes_)

    def _build_options(self, y: Any) -> dict[str, Any]:
        options = super()._build_options(y)
        if self.class_weight is None:
            return options
        labels = self.classes_[y] if self.class_weight == "balanced" else self.classes_
        weights = compute_class_weight(self.class_weight, classes=self.classes_, y=labels)
        return dict(class_weight=np.asarray(weights), **options)


_MIN_PROBABILITY = 1e-30
"""Is positive in float32, so that its logarithm is finite."""


def log_probabilities(outputs: NDArray[Any], loss: str | losses.BatchFunction) -> NDArray[Any]:
    """Return the log probabilities of the classes, shape (samples, classes).

    Outputs are probabilities if the loss is ``categorical_cross_entropy`` (``cce``, ``sce``), log
    probabilities if it is ``nn.NLLLoss`` (both are normalized), and logits otherwise.
    """
    tensor = torch.from_numpy(outputs)
    function = losses.LOSSES.get(loss) if isinstance(loss, str) else loss
    if function is losses.categorical_cross_entropy:
        tensor = tensor.clamp(min=_MIN_PROBABILITY).log()
    return np.asarray(nn.functional.log_softmax(tensor, dim=1))  # identity for log probabilities


@dataclass(eq=False, repr=False)
class DistributedRegressor(RegressorMixin, DistributedEstimator):  # type: ignore[misc]
    """A scikit-learn regressor whose network ``DistributedTrainer`` trains.

    The parameters are those of ``DistributedEstimator``; the loss is ``"mse"`` by default. Scale
    large targets, which are learned slowly, for example with
    ``sklearn.compose.TransformedTargetRegressor``.

    ``n_outputs_`` is the number of targets per sample; the other attributes are in
    ``DistributedEstimator``.
    """

    n_outputs_: int = field(init=False)
    _target_shape: tuple[int, ...] = field(init=False)

    _target_checks: ClassVar[Mapping[str, bool]] = {"multi_output": True, "y_numeric": True}

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train for one more epoch on these samples."""
        return self._train(
            X, y, sample_weight, num_epochs=1, warm_start=self.__sklearn_is_fitted__()
        )

    def predict(self, X: Any) -> NDArray[Any]:
        """Return predictions in the shape of the fitted targets.

        They are float64 if the targets were, otherwise float32.
        """
        outputs = self._predict_outputs(X)
        predictions = outputs.reshape(len(outputs), *self._target_shape)
        return predictions.astype(self._target_dtype, copy=False)

    def _encode_targets(self, x: Any, y: Any, labels: Any) -> tuple[Any, int]:
        """Return targets in the precision of the network, and how many of them a sample has.

        It sets or checks their shape and dtype.
        """
        shape = y.shape[1:]
        if self.__sklearn_is_fitted__() and shape != self._target_shape:
            raise ValueError(
                f"y has targets of shape {shape}, but those of the first fit had "
                f"{self._target_shape}"
            )
        self._target_shape = shape
        self.n_outputs_ = math.prod(shape)
        self._target_dtype = np.dtype(np.float64 if y.dtype == np.float64 else np.float32)
        dtype = np.float64 if x.dtype == np.float64 else np.float32
        return np.asarray(y, dtype), self.n_outputs_

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
