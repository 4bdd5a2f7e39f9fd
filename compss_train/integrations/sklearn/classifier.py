"""``DistributedClassifier``: classes of any kind, by a network with an output for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.preprocessing import LabelEncoder
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor, nn

from compss_train.data import BlockedTensor, FileDataset
from compss_train.integrations.sklearn.base import DistributedEstimator
from compss_train.integrations.sklearn.inputs import as_array, in_parts, mapped, values_in_parts
from compss_train.model.losses import LOSSES, BatchFunction, categorical_cross_entropy
from compss_train.model.metrics import MetricSpec


@dataclass(eq=False, repr=False)
class DistributedClassifier(ClassifierMixin, DistributedEstimator):  # type: ignore[misc]
    """Trains a network to tell classes apart, with scikit-learn's interface.

    The parameters are those of ``EstimatorParameters``; by default the loss is ``"cross_entropy"``, of logits, and
    the metric ``"accuracy"``. With ``categorical_cross_entropy`` the network's outputs are taken for probabilities,
    with ``nn.NLLLoss`` for their logarithms, with other losses for logits.

    ``class_weight`` are weights in the loss: a dict from labels (1 for those that are not in it), ``"balanced"``
    for such that make up for how many samples each class has (not for files), or ``None``.

    y holds labels of any kind, one a sample. Files must hold the numbers 0 to k-1, since workers read them.

    ``classes_`` are the labels in the order of the outputs; the other attributes are in ``EstimatorParameters``.
    """

    loss: str | BatchFunction = "cross_entropy"
    metric: MetricSpec = "accuracy"
    class_weight: Mapping[Any, float] | str | None = None

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train on samples X (n, features) with the labels y (n,), and return the estimator.

        ``sample_weight`` (n,) are weights in the loss, as ``DistributedTrainer.fit`` takes them.

        With ``warm_start``, a second fit goes on, and its labels have to be among those of the first.

        Raises what ``DistributedTrainer.fit`` does, and ``ValueError`` for what scikit-learn does not accept and
        for a network that has not an output for each class, before training.
        """
        go_on = self.warm_start and self.__sklearn_is_fitted__()
        encode = partial(self._encoded, classes=self.classes_ if go_on else None)
        return self._train(X, y, sample_weight, encode, num_epochs=self.num_epochs, go_on=go_on)

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train for one more epoch on these samples. The first call has to name all ``classes``."""
        if isinstance(self.class_weight, str):
            raise ValueError(f"class_weight={self.class_weight!r} needs all samples at once; give a dict instead")
        go_on = self.__sklearn_is_fitted__()
        if not go_on and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit.")
        if go_on and classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(
                f"classes={classes!r} are not those of the first call, {self.classes_}; leave them out"
            )
        encode = partial(self._encoded, classes=self.classes_ if go_on else classes)
        return self._train(X, y, sample_weight, encode, num_epochs=1, go_on=go_on)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the label of each sample, that of its largest output."""
        numbers = self._predicted(X).argmax(axis=1)
        labels: NDArray[Any] = self.classes_[numbers]
        return labels

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Return the probability of each class, shape (samples, classes), in the order of ``classes_``."""
        probabilities: NDArray[Any] = np.exp(log_probabilities(self._predicted(X), self.loss))
        return probabilities

    def decision_function(self, X: Any) -> NDArray[Any]:
        """Return the logarithms of the probabilities, shape (samples, classes).

        Of two classes: how much larger that of the second one is, shape (samples,).
        """
        logarithms = log_probabilities(self._predicted(X), self.loss)
        return logarithms[:, 1] - logarithms[:, 0] if len(self.classes_) == 2 else logarithms

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of samples whose label is predicted."""
        return float(super().score(X, as_array(y), sample_weight))

    @property
    def _outputs(self) -> int:
        return len(self.classes_)

    def _encoded(self, x: Any, y: Any, classes: Any) -> Any:
        """Return the numbers of the labels; learns the classes."""
        found = classes
        if classes is None:
            found = values_in_parts(x, y) if in_parts(x) else y
        check_classification_targets(found)
        labels = LabelEncoder().fit(found)
        self.classes_ = _checked_classes(labels.classes_, x)
        if isinstance(y, BlockedTensor):
            return mapped(lambda block: labels.transform(np.ravel(block)), y)
        return None if y is None else labels.transform(y)

    def _build_options(self, x: Any, y: Any) -> dict[str, Any]:
        options = super()._build_options(x, y)
        if self.class_weight is None:
            return options
        return dict(class_weight=self._weights_of_classes(x, y), **options)

    def _weights_of_classes(self, x: Any, y: Any) -> NDArray[Any]:
        labels = self.classes_
        if self.class_weight == "balanced":
            if isinstance(x, FileDataset):
                raise ValueError("class_weight='balanced' is not for files; give a dict from labels to weights")
            labels = labels[as_array(y)]
        weights: NDArray[Any] = compute_class_weight(self.class_weight, classes=self.classes_, y=labels)
        return weights

    def _strata(self, y: NDArray[Any]) -> NDArray[Any]:
        return y


def _checked_classes(classes: NDArray[Any], x: object) -> NDArray[Any]:
    if len(classes) < 2:
        raise ValueError(f"y has only one class, {classes[0]!r}; a classifier needs at least two to tell apart")
    if isinstance(x, FileDataset) and not np.array_equal(classes, np.arange(len(classes))):
        raise ValueError(
            f"the files hold the labels {classes}; workers read them, so they must be numbers from 0 on"
        )
    return classes


_SMALLEST = 1e-30  # a probability that float32 can hold, for the logarithm of 0


def log_probabilities(outputs: NDArray[Any], loss: str | BatchFunction) -> NDArray[Any]:
    """Return the logarithms of the classes' probabilities, shape (samples, classes).

    Outputs are probabilities where the loss is ``categorical_cross_entropy`` (``cce``, ``sce``) and their
    logarithms where it is ``nn.NLLLoss``, each scaled to a sum of 1; logits else.
    """
    tensor = torch.from_numpy(outputs)
    function = LOSSES.get(loss) if isinstance(loss, str) else loss
    if function is categorical_cross_entropy:
        tensor = tensor.clamp(min=_SMALLEST).log()
    logarithms: Tensor = nn.functional.log_softmax(tensor, dim=1)  # leaves logarithms of probabilities as they are
    result: NDArray[Any] = logarithms.numpy()
    return result
