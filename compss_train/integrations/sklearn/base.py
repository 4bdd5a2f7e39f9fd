"""What the classifier and the regressor have in common: how they train, and what they predict from."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import nn

from compss_train._utils.validation import check_count
from compss_train.callbacks import Callback, EarlyStopping
from compss_train.data.block import Block
from compss_train.integrations.sklearn.constructor import EstimatorParameters, NetworkFactory
from compss_train.integrations.sklearn.inputs import (
    checked_pair,
    checked_samples,
    checked_weights,
    first_sample,
    in_parts,
)
from compss_train.model.random_state import random_state
from compss_train.reports.history import History
from compss_train.reports.records import Record
from compss_train.trainer import DistributedTrainer

ADAM = {"optimizer": "adam", "lr": 1e-3}
"""The optimizer where none is given."""

_OF_FIT = ("batch_size", "merge", "merge_every", "merge_unit", "shuffle")
_OF_PREDICTION = ("transform", "precision", "memory_format")


class DistributedEstimator(EstimatorParameters):
    """A network that ``DistributedTrainer`` trains, with scikit-learn's interface."""

    _checks_of_targets: ClassVar[Mapping[str, bool]] = {}
    """How ``validate_data`` looks at y."""

    @property
    @abstractmethod
    def _outputs(self) -> int:
        """Numbers that the network gives for a sample."""

    def _train(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        encode: Callable[[Any, Any], Any],
        *,
        num_epochs: int,
        go_on: bool,
    ) -> Self:
        """Train on the samples and on what ``encode(x, y)`` makes of the targets, about which it learns."""
        x, y = checked_pair(self, X, y, reset=not go_on, **self._checks_of_targets)
        weights = checked_weights(sample_weight)
        if not go_on and hasattr(self, "module_"):
            del self.module_  # should this fit fail, it would not go with what is learnt from now on
        y = encode(x, y)
        seed = self._next_seed(go_on)
        first = first_sample(x)
        net = self.module_ if go_on else make_network(self.net, first, self._outputs, self.hidden, seed)
        workers = min(check_count("num_workers", self.num_workers), x.number_samples if in_parts(x) else len(x))
        trainer = DistributedTrainer(workers, engine=self.engine, seed=seed, threads=self.threads)
        trainer.build(net, self.optimizer or ADAM, self.loss, self.metric, **self._build_options(x, y))
        self._check_outputs(self._predictor(net).predict(first))
        options = self._fit_options(x, y, weights, seed)
        with trainer:
            trainer.fit(**options, num_epochs=num_epochs)
        self._keep(trainer, go_on)
        return self

    def _next_seed(self, go_on: bool) -> int:
        """Return the seed of this fit; one that goes on has its own, not to repeat the order of the first."""
        if go_on:
            return int(np.random.SeedSequence((self.seed_, self.n_iter_)).generate_state(1)[0])
        if isinstance(self.random_state, int | np.integer):
            self.seed_ = int(self.random_state)
        else:
            self.seed_ = int(check_random_state(self.random_state).randint(2**31))
        return self.seed_

    def _check_outputs(self, outputs: NDArray[Any]) -> None:
        """Raise ``ValueError`` unless the network's outputs for a sample are as many as they should be."""
        if outputs[0].size != self._outputs:
            raise ValueError(
                f"the network gives outputs of shape {outputs.shape[1:]} for a sample, but {self._outputs} numbers "
                "are needed, one for each class or target; change its last layer"
            )

    def _build_options(self, x: Any, y: Any) -> dict[str, Any]:
        """Return the other options of ``build``, for these samples and encoded targets."""
        return dict(self.build_options or {})

    def _fit_options(self, x: Any, y: Any, sample_weight: Any, seed: int) -> dict[str, Any]:
        data = {"x": x, "y": y, "sample_weight": sample_weight}
        if self.validation_fraction is not None:
            data = self._split(data, seed)
        own = {name: getattr(self, name) for name in _OF_FIT}
        others = dict(**data, progress=bool(self.verbose), **own, **self.fit_options or {})
        return dict(callbacks=self._callbacks(evaluated="validation_data" in others), **others)

    def _callbacks(self, *, evaluated: bool) -> list[Callback]:
        if self.n_iter_no_change is None:
            return list(self.callbacks)
        monitor = "val_loss" if evaluated else "loss"
        return [*self.callbacks, EarlyStopping(monitor, patience=self.n_iter_no_change)]

    def _split(self, data: dict[str, Any], seed: int) -> dict[str, Any]:
        """Return what is trained on, and what is held out as ``validation_data``."""
        share = self.validation_fraction
        if not isinstance(share, float) or not 0 < share < 1:
            raise ValueError(f"validation_fraction={share!r}: give a number between 0 and 1, such as 0.1, or None")
        if in_parts(data["x"]):
            raise ValueError(
                f"validation_fraction={share} is for arrays; give blocks or files to evaluate on in "
                "fit_options={'validation_data': ...}"
            )
        given = {name: array for name, array in data.items() if array is not None}
        strata = self._strata(data["y"])
        cut = train_test_split(*given.values(), test_size=share, random_state=seed % 2**32, stratify=strata)
        return {**data, **dict(zip(given, cut[::2], strict=True)), "validation_data": (cut[1], cut[3])}

    def _strata(self, y: NDArray[Any]) -> NDArray[Any] | None:
        """Return what both parts of a split have alike shares of."""
        return None

    def _keep(self, trainer: DistributedTrainer, go_on: bool) -> None:
        """Keep what was trained, none of what trained it."""
        self.module_ = trainer.model().eval()
        self.history_ = _continued(self.history_ if go_on else [], trainer.history)
        self.n_iter_ = (
            self.history_[-1]["epoch"] if self.history_ else 0
        )  # none where there was no time for a round

    def _predicted(self, X: Any) -> NDArray[Any]:
        """Return the network's outputs, computed in this process."""
        check_is_fitted(self)
        return self._predictor(self.module_).predict(checked_samples(self, X))

    def _predictor(self, net: nn.Module) -> DistributedTrainer:
        """Return a trainer that predicts with the network in this process, as workers do."""
        options = dict(self.build_options or {})
        own = {name: options[name] for name in _OF_PREDICTION if name in options}
        gpus = min(options.get("num_gpu", 0), torch.cuda.device_count())
        trainer = DistributedTrainer(1, engine="serial", seed=0, threads=self.threads or torch.get_num_threads())
        trainer.build(net, ADAM, "mse", num_gpu=gpus, **own)
        return trainer

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "module_")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.merge != "synchronous"  # the order of arrival changes rounding
        return tags


def _continued(before: Sequence[Record], after: History) -> History:
    """Return the history of two fits, the second of which counted from the start."""
    if not before:
        return after
    rounds, epochs = len(before), before[-1]["epoch"]
    later = [{**r, "round": r["round"] + rounds, "epoch": r["epoch"] + epochs} for r in after]
    return History([*before, *later])


def make_network(
    net: nn.Module | NetworkFactory | None, sample: Block, outputs: int, hidden: Sequence[int], seed: int
) -> nn.Module:
    """Return the network to begin with for such a sample, shape (1, ...): ``net`` itself where it is a module.

    Else its parameters are drawn as after ``torch.manual_seed(seed)``; the caller's random numbers are not touched.
    """
    if isinstance(net, nn.Module):
        return net
    if net is not None and not callable(net):
        raise TypeError(
            f"net={net!r}: give a torch.nn.Module, a function of (inputs, outputs) that returns one, or None for "
            "a perceptron with the hidden layers of hidden="
        )
    inputs = sample.shape[1]
    with random_state(seed, "cpu"):
        if net is not None:
            return net(inputs, outputs)
        made = perceptron(inputs, outputs, hidden)
    return made.double() if str(sample.dtype).endswith("float64") else made


def perceptron(inputs: int, outputs: int, hidden: Sequence[int] = (100,)) -> nn.Module:
    """Return linear layers with ReLU between them; ``hidden`` has the width of each hidden layer."""
    widths = [inputs, *(check_count("hidden", width) for width in _listed(hidden))]
    layers = [layer for before, width in pairwise(widths) for layer in (nn.Linear(before, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))


def _listed(hidden: object) -> Sequence[object]:
    if not isinstance(hidden, list | tuple):
        raise TypeError(f"hidden={hidden!r}: give the widths of the hidden layers, for example (100,)")
    return hidden
