"""The base class of the classifier and the regressor, and the networks that they create."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import is_classifier
from sklearn.model_selection import train_test_split
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import nn

from compss_train._utils.validation import check_count
from compss_train.callbacks import EarlyStopping
from compss_train.data.block import Block
from compss_train.integrations.sklearn.inputs import (
    first_sample,
    is_partitioned,
    validate_sample_weight,
    validate_samples,
    validate_training_data,
)
from compss_train.integrations.sklearn.parameters import (
    EstimatorParameters,
    NetworkFactory,
    make_optimizer,
    make_schedule,
)
from compss_train.model.random_state import random_state
from compss_train.reports.history import History
from compss_train.reports.records import Record
from compss_train.trainer import DistributedTrainer
from compss_train.training.merge import Merge

_FIT_PARAMETERS = ("batch_size", "merge", "shuffle")
_PREDICTION_OPTIONS = ("transform", "precision", "memory_format")


class DistributedEstimator(EstimatorParameters):
    """A network that ``DistributedTrainer`` trains, with the interface of scikit-learn."""

    _target_checks: ClassVar[Mapping[str, bool]] = {}
    """Options of ``validate_data`` for y."""

    def _train(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        encode: Callable[[Any, Any], tuple[Any, int]],
        *,
        num_epochs: int,
        warm_start: bool,
    ) -> Self:
        """Train on the samples and their targets, which ``encode(x, y)`` returns after it has set attributes.

        It also returns the number of outputs of the network for a sample.
        """
        x, y = validate_training_data(self, X, y, reset=not warm_start, **self._target_checks)
        weights = validate_sample_weight(sample_weight)
        if not warm_start and hasattr(self, "module_"):
            del self.module_  # would not match the attributes set below if this fit fails
        y, outputs = encode(x, y)
        seed = self._next_seed(warm_start)
        first = first_sample(x)
        net = self.module_ if warm_start else make_network(self.net, first, outputs, self.hidden, seed)
        num_samples = x.number_samples if is_partitioned(x) else len(x)
        num_workers = min(check_count("num_workers", self.num_workers), num_samples)
        trainer = DistributedTrainer(num_workers, engine=self.engine, seed=seed, threads=self.threads)
        optimizer = make_optimizer(self.optimizer, self.lr)
        trainer.build(net, optimizer, self.loss, self.metric, **self._build_options(x, y))
        output = self._predictor(net).predict(first)[0]
        if output.size != outputs:
            raise ValueError(
                f"the network gives outputs of shape {output.shape} for a sample, but {outputs} numbers are "
                "needed, one for each class or target; change its last layer"
            )
        options = self._fit_options(x, y, weights, seed)
        with trainer:
            trainer.fit(**options, num_epochs=num_epochs)
        self.module_ = trainer.model().eval()
        self.history_ = _concatenate(self.history_ if warm_start else [], trainer.history)
        self.n_iter_ = self.history_[-1]["epoch"] if self.history_ else 0  # 0 if max_time allowed no round
        return self

    def _next_seed(self, warm_start: bool) -> int:
        """Return the seed of this fit; a warm start has its own, so that the order of samples is not repeated."""
        if warm_start:
            return int(np.random.SeedSequence((self.seed_, self.n_iter_)).generate_state(1)[0])
        if isinstance(self.random_state, int | np.integer):
            self.seed_ = int(self.random_state)
        else:
            self.seed_ = int(check_random_state(self.random_state).randint(2**31))
        return self.seed_

    def _build_options(self, x: Any, y: Any) -> dict[str, Any]:
        """Return the options of ``build``, of which some depend on samples and encoded targets."""
        options = dict(self.build_options or {})
        if self.schedule is None:
            return options
        return dict(schedule=make_schedule(self.schedule, check_count("num_epochs", self.num_epochs)), **options)

    def _fit_options(self, x: Any, y: Any, sample_weight: Any, seed: int) -> dict[str, Any]:
        data = {"x": x, "y": y, "sample_weight": sample_weight}
        if self.validation_fraction is not None:
            data = self._split(data, seed)
        parameters = {name: getattr(self, name) for name in _FIT_PARAMETERS}
        options = dict(**data, progress=bool(self.verbose), **parameters, **self.fit_options or {})
        callbacks = list(self.callbacks)
        if self.n_iter_no_change is not None:
            monitor = "val_loss" if "validation_data" in options else "loss"
            callbacks.append(EarlyStopping(monitor, patience=self.n_iter_no_change))
        return dict(callbacks=callbacks, **options)

    def _split(self, data: dict[str, Any], seed: int) -> dict[str, Any]:
        """Split off a share of the samples as ``validation_data``."""
        fraction = self.validation_fraction
        if not isinstance(fraction, float) or not 0 < fraction < 1:
            raise ValueError(f"validation_fraction={fraction!r}: give a number between 0 and 1, or None")
        if is_partitioned(data["x"]):
            raise ValueError(
                f"validation_fraction={fraction} needs arrays; give blocks or files for validation in "
                "fit_options={'validation_data': ...}"
            )
        arrays = {name: array for name, array in data.items() if array is not None}
        strata = data["y"] if is_classifier(self) else None
        parts = train_test_split(*arrays.values(), test_size=fraction, random_state=seed % 2**32, stratify=strata)
        return {**data, **dict(zip(arrays, parts[::2], strict=True)), "validation_data": (parts[1], parts[3])}

    def _predict_outputs(self, X: Any) -> NDArray[Any]:
        """Return the outputs of the network, computed in this process."""
        check_is_fitted(self)
        outputs: NDArray[Any] = self._predictor(self.module_).predict(validate_samples(self, X))
        return outputs

    def _predictor(self, net: nn.Module) -> DistributedTrainer:
        """Return a trainer that predicts with the network in this process."""
        options = dict(self.build_options or {})
        used = {name: options[name] for name in _PREDICTION_OPTIONS if name in options}
        gpus = min(options.get("num_gpu", 0), torch.cuda.device_count())
        trainer = DistributedTrainer(1, engine="serial", seed=0, threads=self.threads or torch.get_num_threads())
        trainer.build(net, make_optimizer(None, None), "mse", num_gpu=gpus, **used)
        return trainer

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "module_")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        # The order of arrival changes rounding.
        tags.non_deterministic = Merge.of(self.merge).kind in ("commutative", "parameter_server")
        return tags


def _concatenate(before: Sequence[Record], after: History) -> History:
    """Return the history of two fits, with rounds and epochs numbered consecutively."""
    if not before:
        return after
    rounds, epochs = len(before), before[-1]["epoch"]
    renumbered = [{**r, "round": r["round"] + rounds, "epoch": r["epoch"] + epochs} for r in after]
    return History([*before, *renumbered])


def make_network(
    net: nn.Module | NetworkFactory | None, sample: Block, outputs: int, hidden: int | Sequence[int], seed: int
) -> nn.Module:
    """Return the initial network for a sample of shape (1, ...): ``net`` itself if it is a module.

    Otherwise its parameters are drawn as after ``torch.manual_seed(seed)``; the global random state is unchanged.
    """
    if isinstance(net, nn.Module):
        return net
    if net is not None and not callable(net):
        raise TypeError(
            f"net={net!r}: give a torch.nn.Module, a function of (inputs, outputs) that returns one, or None for "
            "a multilayer perceptron with the hidden layers of hidden="
        )
    inputs = sample.shape[1]
    with random_state(seed, "cpu"):
        if net is not None:
            return net(inputs, outputs)
        network = perceptron(inputs, outputs, hidden)
    return network.double() if str(sample.dtype).endswith("float64") else network


def perceptron(inputs: int, outputs: int, hidden: int | Sequence[int] = (100,)) -> nn.Module:
    """Return linear layers with ReLU between them; ``hidden`` has the widths of the hidden layers, or one."""
    if not isinstance(hidden, list | tuple | int | np.integer):
        raise TypeError(f"hidden={hidden!r}: give the width of the hidden layer, or several: (100, 50)")
    several = hidden if isinstance(hidden, list | tuple) else (hidden,)
    widths = [inputs, *(check_count("hidden", width) for width in several)]
    layers = [layer for before, width in pairwise(widths) for layer in (nn.Linear(before, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))
