"""The parameters that the classifier and the regressor have in common."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike
from sklearn.base import BaseEstimator
from torch import nn

from compss_train.callbacks import Callback
from compss_train.data.partitioning import MergeUnit, Shuffle
from compss_train.engines import Engine
from compss_train.model.losses import BatchFunction
from compss_train.model.metrics import MetricSpec
from compss_train.model.optimizers import OptimizerSpec
from compss_train.reports.history import History
from compss_train.training.fit_options import MergeName

NetworkFactory: TypeAlias = Callable[[int, int], nn.Module]
"""Makes a network of so many inputs and outputs."""


@dataclass(eq=False, repr=False)
class EstimatorParameters(BaseEstimator, ABC):  # type: ignore[misc]
    """What ``DistributedClassifier`` and ``DistributedRegressor`` take.

    Parameters
    ----------
    net:
        ``None`` (default) for a perceptron, an ``nn.Module``, whose present parameters are the initial ones and
        which is never changed, or a function of (inputs, outputs) that returns one: ``X.shape[1]``, and the
        number of classes or of targets.
    hidden:
        Widths of the perceptron's hidden layers, ``(100,)`` by default.
    optimizer:
        As ``DistributedTrainer.build`` takes it; ``None`` for Adam with a learning rate of 0.001.
    loss, metric:
        As ``build`` takes them. The metric is in ``history_``; ``score`` is scikit-learn's.
    num_workers, engine, threads:
        As ``DistributedTrainer`` takes them; 2 workers by default, no more than there are samples. An engine named
        is started for every fit; an ``Engine`` is used as it is, by clones too, and is yours to shut down.
    num_epochs, batch_size, merge, merge_every, merge_unit, shuffle:
        As ``DistributedTrainer.fit`` takes them; by default 20 epochs, batches of 32, a merge after every epoch,
        and all samples shuffled.
    dtype:
        What X is converted to, ``"float32"`` by default; ``None`` takes it as it is (integers for an embedding,
        bytes for a transform).
    random_state:
        An integer makes a fit repeatable: it is the trainer's seed, and that of the initial parameters of networks
        that are made. ``None`` or a ``RandomState`` gives another seed for every fit.
    warm_start:
        Whether ``fit`` goes on from the parameters of the last one. Optimizers start anew.
    validation_fraction:
        Share of the samples, between 0 and 1, that is held out and evaluated after every round, for ``history_``
        and callbacks; ``None`` (default) for none. Not for blocks and files.
    n_iter_no_change:
        Rounds without improvement of the loss of what is held out, or else of the training, after which a fit stops
        with the parameters of its best round; ``None`` (default) for never. ``EarlyStopping`` among the callbacks
        can do more.
    callbacks:
        ``Callback`` objects; a clone has copies.
    fit_options, build_options:
        Dicts of all other options of the trainer's ``fit`` and ``build``.
    verbose:
        Whether to show progress.

    Attributes
    ----------
    module_:
        The fitted network, on the CPU.
    history_:
        What the trainer's ``history`` was.
    n_iter_:
        Epochs trained.
    seed_:
        The seed of the fit.
    n_features_in_, feature_names_in_:
        As everywhere in scikit-learn.

    X may be a ``BlockedTensor`` (dislib's too) with y another, or a ``FileDataset`` that holds both; they are taken
    as they are, without conversion.
    """

    net: nn.Module | NetworkFactory | None = None
    _: KW_ONLY
    hidden: Sequence[int] = (100,)
    optimizer: OptimizerSpec | None = None
    loss: str | BatchFunction = "mse"
    metric: MetricSpec = None
    num_workers: int = 2
    engine: str | Engine = "auto"
    num_epochs: int = 20
    batch_size: int | None = 32
    merge: MergeName = "synchronous"
    merge_every: int = 1
    merge_unit: MergeUnit = "epochs"
    shuffle: Shuffle = "total"
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

    # What a fit learns is not there before.
    module_: nn.Module = field(init=False)
    history_: History = field(init=False)
    n_iter_: int = field(init=False)
    seed_: int = field(init=False)
    n_features_in_: int = field(init=False)
