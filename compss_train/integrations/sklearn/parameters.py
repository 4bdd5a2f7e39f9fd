"""The parameters of the classifier and the regressor, and what optimizers and schedules with a name stand for."""

import math
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import DTypeLike
from sklearn.base import BaseEstimator
from torch import nn

from compss_train._utils.validation import suggestion
from compss_train.callbacks import Callback
from compss_train.engines import Engine
from compss_train.model.losses import BatchFunction
from compss_train.model.metrics import MetricSpec
from compss_train.model.optimizers import OptimizerSpec
from compss_train.model.schedule import ScheduleSpec
from compss_train.reports.history import History
from compss_train.training.fit_options import ShuffleLike
from compss_train.training.merge import MergeLike

NetworkFactory: TypeAlias = Callable[[int, int], nn.Module]
"""A function of the numbers of inputs and outputs that returns a network."""

LEARNING_RATE = 1e-3
"""Of optimizers with a name, where none is given."""

_DICTS = ("optimizer", "build_options", "fit_options")
"""Parameters whose options have names of their own."""


@dataclass(eq=False, repr=False)
class EstimatorParameters(BaseEstimator, ABC):  # type: ignore[misc]
    """The parameters of ``DistributedClassifier`` and ``DistributedRegressor``.

    Parameters
    ----------
    net:
        ``None`` (default) for a multilayer perceptron, an ``nn.Module``, whose current parameters are the initial
        ones and which is never modified, or a function of (inputs, outputs) that returns one: ``X.shape[1]``, and
        the number of classes or of targets.
    hidden:
        Widths of the perceptron's hidden layers, ``(100,)`` by default; a number for a single one.
    optimizer:
        As of ``DistributedTrainer.build``, or a name alone, such as ``"sgd"``; ``"adam"`` by default.
    lr:
        Learning rate of an optimizer that is given by name or as a dict without it; 0.001 by default.
    schedule:
        ``"cosine"`` or ``"linear"`` for a learning rate that falls to zero over ``num_epochs``, or as of ``build``;
        ``None`` (default) for a constant one. A ``Schedule`` may have several steps an epoch.
    loss, metric:
        As of ``build``. The metric is in ``history_``; ``score`` is that of scikit-learn.
    num_workers, engine, threads:
        As of ``DistributedTrainer``; by default 2 workers, at most as many as samples. An engine given by name is
        started for every fit; an ``Engine`` object is shared with clones, and the caller shuts it down.
    num_epochs, batch_size, merge, shuffle:
        As of ``DistributedTrainer.fit``; by default 20 epochs, batches of 32, a merge after every epoch,
        and all samples shuffled. ``merge="auto"`` with ``batch_size=None`` also chooses the batches.
    dtype:
        Type to which X is converted, ``"float32"`` by default; ``None`` for no conversion (integers for an
        embedding, bytes for a transform).
    random_state:
        An integer makes fits reproducible: it is the seed of the trainer and of the initial parameters of networks
        that are created. ``None`` or a ``RandomState`` gives another seed for every fit.
    warm_start:
        Whether ``fit`` starts from the parameters of the previous fit. Optimizers are reset.
    validation_fraction:
        Fraction of the samples, between 0 and 1, that is held out and evaluated after every round, for
        ``history_`` and callbacks; ``None`` (default) for none. Not for blocks and files.
    n_iter_no_change:
        Number of rounds without improvement of the validation loss (or of the training loss without validation)
        after which a fit stops with the parameters of its best round; ``None`` (default) for never. The callback
        ``EarlyStopping`` has more options.
    callbacks:
        ``Callback`` objects; a clone has copies.
    fit_options, build_options:
        Dicts of all other options of the trainer's ``fit`` and ``build``.

        Searches and ``set_params`` reach options in dicts by names such as ``optimizer__momentum`` and
        ``fit_options__max_time``.
    verbose:
        Whether to show progress.

    Attributes
    ----------
    module_:
        The fitted network, on the CPU.
    history_:
        The history of the trainer.
    n_iter_:
        Epochs trained.
    seed_:
        The seed of the fit.
    n_features_in_, feature_names_in_:
        As in scikit-learn.

    X may be a ``BlockedTensor`` (dislib's too) with y another, or a ``FileDataset`` that holds both; they are
    not converted.
    """

    net: nn.Module | NetworkFactory | None = None
    _: KW_ONLY
    hidden: int | Sequence[int] = (100,)
    optimizer: OptimizerSpec | str | None = None
    lr: float | None = None
    schedule: ScheduleSpec | str | None = None
    loss: str | BatchFunction = "mse"
    metric: MetricSpec = None
    num_workers: int = 2
    engine: str | Engine = "auto"
    num_epochs: int = 20
    batch_size: int | None = 32
    merge: MergeLike = "synchronous"
    shuffle: ShuffleLike = "total"
    threads: int | None = None
    dtype: DTypeLike = "float32"
    random_state: int | np.random.RandomState | None = None
    warm_start: bool = False
    validation_fraction: float | None = None
    n_iter_no_change: int | None = None
    callbacks: Sequence[Callback] = ()
    fit_options: Mapping[str, Any] | None = None
    build_options: Mapping[str, Any] | None = None
    verbose: bool = False

    # set by a fit
    module_: nn.Module = field(init=False)
    history_: History = field(init=False)
    n_iter_: int = field(init=False)
    seed_: int = field(init=False)
    n_features_in_: int = field(init=False)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters, and with ``deep`` the options in dicts, such as ``optimizer__lr``."""
        parameters: dict[str, Any] = super().get_params(deep=deep)
        dicts = {name: getattr(self, name) for name in _DICTS if deep}
        nested = {name: value for name, value in dicts.items() if isinstance(value, Mapping)}
        options = {f"{name}__{key}": each for name, value in nested.items() for key, each in value.items()}
        return {**parameters, **options}

    def set_params(self, **parameters: Any) -> Self:
        """Set parameters, and options in dicts by names such as ``optimizer__lr``; return the estimator."""
        own = {name: value for name, value in parameters.items() if name.partition("__")[0] not in _DICTS}
        whole = {name: parameters[name] for name in _DICTS if name in parameters}
        super().set_params(**own, **whole)
        for name, value in parameters.items():
            parameter, nested, option = name.partition("__")
            if nested and parameter in _DICTS:
                setattr(self, parameter, {**as_options(parameter, getattr(self, parameter)), option: value})
        return self


def as_options(name: str, value: object) -> dict[str, Any]:
    """Return the value of a parameter that is a dict; an optimizer may be given by name instead.

    Raises ``TypeError`` for other values, which have no options.
    """
    if name == "optimizer" and (value is None or isinstance(value, str)):
        return {"optimizer": value or "adam"}
    if value is None or isinstance(value, Mapping):
        return dict(value or {})
    raise TypeError(
        f"{name}__... sets an option of {name}, but {name}={value!r} is not a dict; give a dict"
        + (" or a name, such as 'sgd'" if name == "optimizer" else "")
    )


def make_optimizer(optimizer: OptimizerSpec | str | None, lr: float | None) -> OptimizerSpec:
    """Return the optimizer for ``DistributedTrainer.build``, with the learning rate ``lr`` if it is not ``None``.

    Raises ``ValueError`` if the optimizer has a learning rate of its own, or could have.
    """
    if optimizer is not None and not isinstance(optimizer, str | Mapping):
        if lr is not None:
            raise ValueError(f"lr={lr} is for an optimizer with a name; set it in optimizer={optimizer!r}")
        return optimizer
    options = as_options("optimizer", optimizer)
    if lr is not None and "lr" in options:
        raise ValueError(f"lr={lr} and optimizer={options}: give the learning rate in one of them")
    if lr is None and not isinstance(options.get("optimizer"), str):
        return options  # a class of torch has its own default
    return {"lr": LEARNING_RATE if lr is None else lr, **options}


def make_schedule(schedule: ScheduleSpec | str, num_epochs: int) -> ScheduleSpec:
    """Return the schedule for ``DistributedTrainer.build``; those with a name end after ``num_epochs``."""
    if not isinstance(schedule, str):
        return schedule
    if schedule not in SCHEDULES:
        hint = suggestion(schedule, SCHEDULES)
        raise ValueError(f"unknown schedule {schedule!r}; choose one of {', '.join(SCHEDULES)}, or give one{hint}")
    return partial(SCHEDULES[schedule], num_epochs=num_epochs)


def _cosine(epoch: float, *, num_epochs: int) -> float:
    return 0.5 * (1 + math.cos(math.pi * min(1.0, epoch / num_epochs)))


def _linear(epoch: float, *, num_epochs: int) -> float:
    return max(0.0, 1 - epoch / num_epochs)


SCHEDULES: Mapping[str, Callable[..., float]] = {"cosine": _cosine, "linear": _linear}
"""Factors of the learning rate that fall from 1 to 0 over the epochs of a fit; half a cosine is that of Loshchilov
and Hutter 2017, without restarts."""
