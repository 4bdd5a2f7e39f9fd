"""``DistributedRegressor``: a network that predicts one or more numbers per sample."""

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
from compss_train.integrations.sklearn.inputs import as_array, first_row_of_files, is_partitioned, map_blocks


@dataclass(eq=False, repr=False)
class DistributedRegressor(RegressorMixin, DistributedEstimator):  # type: ignore[misc]
    """A regressor with the interface of scikit-learn, whose network ``DistributedTrainer`` trains.

    The parameters are those of ``EstimatorParameters``; the loss is ``"mse"`` by default. Large targets are
    learned slowly: scale them, for example with ``sklearn.compose.TransformedTargetRegressor``.

    ``n_outputs_`` is the number of targets per sample; the other attributes are in ``EstimatorParameters``.
    """

    n_outputs_: int = field(init=False)
    _target_shape: tuple[int, ...] = field(init=False)

    _target_checks: ClassVar[Mapping[str, bool]] = {"multi_output": True, "y_numeric": True}

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train on samples X (n, features) with targets y, (n,) or (n, outputs), and return the estimator.

        ``sample_weight`` (n,) are weights in the loss, as of ``DistributedTrainer.fit``.

        Raises the exceptions of ``DistributedTrainer.fit``, and before training ``ValueError`` for data that
        scikit-learn does not accept and for a network without an output for each target.
        """
        warm_start = self.warm_start and self.__sklearn_is_fitted__()
        return self._train(
            X, y, sample_weight, self._encode_targets, num_epochs=self.num_epochs, warm_start=warm_start
        )

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train for one more epoch on these samples."""
        warm = self.__sklearn_is_fitted__()
        return self._train(X, y, sample_weight, self._encode_targets, num_epochs=1, warm_start=warm)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return predictions in the shape of the fitted targets, as float64 if these were, otherwise float32."""
        outputs = self._predict_outputs(X)
        return outputs.reshape(len(outputs), *self._target_shape).astype(self._target_dtype, copy=False)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R² of the predictions."""
        return float(super().score(X, as_array(y), sample_weight))

    def _encode_targets(self, x: Any, y: Any) -> tuple[Any, int]:
        """Return targets in the precision of the network, and how many; set or check their shape and dtype."""
        if isinstance(x, FileDataset):
            shape = tuple(first_row_of_files(x)[-1].shape[1:])
        else:
            shape = tuple(y.sample_shape if is_partitioned(y) else y.shape[1:])
        if self.__sklearn_is_fitted__() and shape != self._target_shape:
            raise ValueError(f"y has targets of shape {shape}, but those of the first fit had {self._target_shape}")
        self._target_shape, self.n_outputs_ = shape, math.prod(shape)
        self._target_dtype = np.dtype(np.float64 if getattr(y, "dtype", None) == np.float64 else np.float32)
        if not is_partitioned(x):
            y = np.asarray(y, np.float64 if x.dtype == np.float64 else np.float32)
        elif self.net is None and len(shape) > 1 and y is not None:  # the perceptron's outputs are flat
            y = map_blocks(lambda block: block.reshape(len(block), -1), y)
        return y, self.n_outputs_

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
