"""``DistributedRegressor``: one number or several a sample."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils import Tags

from compss_train.data import FileDataset
from compss_train.integrations.sklearn.base import DistributedEstimator
from compss_train.integrations.sklearn.inputs import as_array, first_in_files, in_parts


@dataclass(eq=False, repr=False)
class DistributedRegressor(RegressorMixin, DistributedEstimator):  # type: ignore[misc]
    """Trains a network to predict numbers, with scikit-learn's interface.

    The parameters are those of ``EstimatorParameters``; the loss is ``"mse"`` by default. Large targets learn
    slowly: scale them, for example with ``sklearn.compose.TransformedTargetRegressor``.

    ``n_outputs_`` is the number of targets a sample; the other attributes are in ``EstimatorParameters``.
    """

    n_outputs_: int = field(init=False)
    _target_shape: tuple[int, ...] = field(init=False)

    _checks_of_targets: ClassVar[Mapping[str, bool]] = {"multi_output": True, "y_numeric": True}

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train on samples X (n, features) with targets y, (n,) or (n, outputs), and return the estimator.

        ``sample_weight`` (n,) are weights in the loss, as ``DistributedTrainer.fit`` takes them.

        Raises what ``DistributedTrainer.fit`` does, and ``ValueError`` for what scikit-learn does not accept and
        for a network that has not an output for each target, before training.
        """
        go_on = self.warm_start and self.__sklearn_is_fitted__()
        return self._train(X, y, sample_weight, self._encoded, num_epochs=self.num_epochs, go_on=go_on)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train for one more epoch on these samples."""
        go_on = self.__sklearn_is_fitted__()
        return self._train(X, y, sample_weight, self._encoded, num_epochs=1, go_on=go_on)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the predicted targets in the shape of those of the fit: float64 where they were, else float32."""
        outputs = self._predicted(X)
        return outputs.reshape(len(outputs), *self._target_shape).astype(self._target_dtype, copy=False)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R² of the predictions."""
        return float(super().score(X, as_array(y), sample_weight))

    @property
    def _outputs(self) -> int:
        return self.n_outputs_

    def _encoded(self, x: Any, y: Any) -> Any:
        """Return targets of the network's precision; learns what they look like, or checks that they still do."""
        shape = _shape_of_targets(x, y)
        if self.__sklearn_is_fitted__() and shape != self._target_shape:
            raise ValueError(f"y has targets of shape {shape}, those of the first fit had {self._target_shape}")
        self._target_shape, self.n_outputs_ = shape, math.prod(shape)
        self._target_dtype = np.dtype(np.float64 if getattr(y, "dtype", None) == np.float64 else np.float32)
        return y if in_parts(x) else np.asarray(y, np.float64 if x.dtype == np.float64 else np.float32)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _shape_of_targets(x: Any, y: Any) -> tuple[int, ...]:
    """Return the shape of one sample's target."""
    if isinstance(x, FileDataset):
        return tuple(first_in_files(x)[-1].shape[1:])
    return tuple(y.sample_shape if in_parts(y) else y.shape[1:])
