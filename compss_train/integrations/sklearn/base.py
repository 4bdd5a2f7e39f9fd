"""The base class of the classifier and the regressor."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from sklearn.base import BaseEstimator, is_classifier
from sklearn.model_selection import train_test_split
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from compss_train._utils.validation import check_count, check_fraction
from compss_train.callbacks import Callback, EarlyStopping
from compss_train.data import FileDataset
from compss_train.engines import Engine, LocalEngine, SerialEngine, engine_class
from compss_train.integrations.sklearn import defaults
from compss_train.model import devices, losses, optimizers
from compss_train.model.resolving import MetricSpec
from compss_train.model.schedule import ScheduleSpec
from compss_train.reports.history import History
from compss_train.trainer import DistributedTrainer
from compss_train.training.fit import ShuffleLike
from compss_train.training.merge import Merge, MergeLike

_DICTS = ("optimizer", "net_options", "build_options", "fit_options")
"""Parameters with separately named options."""
_FIT_PARAMETERS = ("batch_size", "merge", "shuffle")
"""Parameters that are options of ``fit`` of the trainer."""
SMALL = 1_000_000
"""Numbers in X up to which a fit is usually over before worker processes have started."""
_PREDICTION_OPTIONS = ("transform", "precision", "memory_format")
"""Options of ``build`` on which predictions depend."""


@dataclass(eq=False, repr=False)
class DistributedEstimator(BaseEstimator, ABC):  # type: ignore[misc]
    """What the classifier and the regressor have in common: a network that the trainer trains.

    Parameters
    ----------
    net:
        ``None`` (default) for a multilayer perceptron; an ``nn.Module``, which is never modified
        and whose current parameters are the initial ones; or a function of (inputs, outputs) that
        returns one, where inputs is ``X.shape[1]``, and outputs the number of classes or targets. A
        class that needs two or more arguments is also called with these two.
    net_options:
        Keyword arguments of a class or function that is ``net``.
    hidden:
        Widths of the perceptron's hidden layers, ``(100,)`` by default; a number for a single one.
    optimizer:
        As in ``DistributedTrainer.build``, or just a name such as ``"sgd"``; ``"adam"`` by default.
    lr:
        Learning rate of an optimizer that is given by name, or as a dict without ``"lr"``; 0.001 by
        default.
    schedule:
        ``"cosine"`` or ``"linear"`` for a learning rate that falls to zero over ``num_epochs``, or
        as in ``build``; ``None`` (default) for a constant one. A ``Schedule`` may have several
        steps per epoch.
    loss, metric:
        As in ``build``. ``history_`` has the metric; ``score`` is scikit-learn's.
    num_workers, engine, threads:
        As in ``DistributedTrainer``; by default 2 workers, at most one per sample. ``"auto"``
        trains X of up to a million numbers in this process, with the same bits, unless there is a
        cluster. For other names every fit starts its own engine; an ``Engine`` object is shared
        with clones, and the caller shuts it down.
    num_epochs, batch_size, merge, shuffle:
        As in ``DistributedTrainer.fit``; by default 20 epochs, batches of 32, a merge after every
        epoch, and all samples shuffled. ``merge="auto"`` with ``batch_size=None`` also chooses the
        batches.
    dtype:
        Dtype that X is converted to, ``"float32"`` by default; ``None`` for no conversion (integers
        for an embedding, bytes for a transform).
    random_state:
        An integer makes fits reproducible: it is the seed of the trainer and of the initial
        parameters of networks that are created. With ``None`` (default) or a ``RandomState`` every
        fit has another seed.
    warm_start:
        Whether ``fit`` starts from the parameters of the previous fit, with a new optimizer.
    validation_fraction:
        Fraction of the samples, between 0 and 1, that is held out and evaluated after every round,
        for ``history_`` and callbacks; ``None`` (default) for none.
    n_iter_no_change:
        Number of rounds without improvement of the validation loss (or of the training loss without
        validation) after which a fit stops with the parameters of its best round; ``None``
        (default) for never. The callback ``EarlyStopping`` has more options.
    callbacks:
        ``Callback`` objects; a clone has copies.
    fit_options, build_options:
        Dicts of all other options of the trainer's ``fit`` and ``build``.

        Searches and ``set_params`` reach options in dicts by names such as ``optimizer__momentum``,
        ``net_options__width`` and ``fit_options__max_time``.
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
        Seed of the fit.
    n_features_in_, feature_names_in_:
        As in scikit-learn.
    """

    net: nn.Module | defaults.NetworkFactory | None = None
    _: KW_ONLY
    net_options: Mapping[str, Any] | None = None
    hidden: int | Sequence[int] = (100,)
    optimizer: optimizers.OptimizerSpec | str | None = None
    lr: float | None = None
    schedule: ScheduleSpec | str | None = None
    loss: str | losses.BatchFunction = "mse"
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
        """Return the parameters, and with ``deep`` options in dicts, such as ``optimizer__lr``."""
        parameters: dict[str, Any] = super().get_params(deep=deep)
        for name in _DICTS if deep else ():
            options = getattr(self, name)
            if isinstance(options, Mapping):
                parameters |= {f"{name}__{key}": value for key, value in options.items()}
        return parameters

    def set_params(self, **parameters: Any) -> Self:
        """Set parameters, and options in dicts by names such as ``optimizer__lr``.

        Returns the estimator.
        """
        options = {
            name: value
            for name, value in parameters.items()
            if "__" in name and name.partition("__")[0] in _DICTS
        }
        super().set_params(
            **{name: value for name, value in parameters.items() if name not in options}
        )
        for name, value in options.items():
            parameter, _, option = name.partition("__")
            before = defaults.as_options(parameter, getattr(self, parameter))
            setattr(self, parameter, {**before, option: value})
        return self

    _target_checks: ClassVar[Mapping[str, bool]] = {}
    """Options of ``validate_data`` for y."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train on samples X (n, features) with labels or targets y, and return the estimator.

        y has shape (n,), or (n, outputs) for several targets. ``sample_weight`` (n,) are weights in
        the loss, as of ``DistributedTrainer.fit``. With ``warm_start``, a second fit continues the
        first one; its labels must be among those of the first.

        Raises the exceptions of ``DistributedTrainer.fit``, and before training ``ValueError`` for
        data that scikit-learn does not accept and for a network without an output for each class or
        target.
        """
        warm_start = self.warm_start and self.__sklearn_is_fitted__()
        return self._train(X, y, sample_weight, num_epochs=self.num_epochs, warm_start=warm_start)

    @abstractmethod
    def _encode_targets(self, x: Any, y: Any, labels: Any) -> tuple[Any, int]:
        """Return targets for the loss, and the number of outputs of the network for a sample.

        It sets attributes. A classifier has the classes of ``labels``, or those that it had before
        for ``None``.
        """

    def _train(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        *,
        num_epochs: int,
        warm_start: bool,
        classes: Any = None,
    ) -> Self:
        """Train on the samples; the labels are of these classes, by default of those that occur."""
        x, y = self._validated(X, y, reset=not warm_start, **self._target_checks)
        weights = None if sample_weight is None else np.asarray(sample_weight)
        if weights is not None and not weights.any():
            raise ValueError(
                "sample_weight is zero for every sample, so there is nothing to train on"
            )
        if not warm_start and hasattr(self, "module_"):
            del self.module_  # would not match the attributes set below if this fit fails
        if classes is None:
            classes = y
        y, outputs = self._encode_targets(x, y, None if warm_start else classes)
        seed = self._next_seed(warm_start=warm_start)
        if warm_start:
            net = self.module_
        else:
            options = self.net_options or {}
            net = defaults.make_network(
                self.net, options, x[:1], outputs=outputs, hidden=self.hidden, seed=seed
            )
        num_workers = min(check_count("num_workers", self.num_workers), len(x))
        starts_processes = self.engine == "auto" and engine_class("auto") is LocalEngine
        engine = SerialEngine.name if starts_processes and x.size <= SMALL else self.engine
        trainer = DistributedTrainer(num_workers, engine=engine, seed=seed, threads=self.threads)
        optimizer = defaults.make_optimizer(self.optimizer, self.lr)
        trainer.build(net, optimizer, self.loss, self.metric, **self._build_options(y))
        output = self._predictor(net).predict(x[:1])[0]
        if output.size != outputs:
            raise ValueError(
                f"the network gives outputs of shape {output.shape} for a sample, but {outputs} "
                "numbers are needed, one for each class or target; change its last layer"
            )
        fit_options = self._fit_options(x, y, weights, seed)
        with trainer:
            trainer.fit(**fit_options, num_epochs=num_epochs)
        self.module_ = trainer.model()
        self.history_ = _continued(self.history_ if warm_start else History(), trainer.history)
        # 0 if max_time allowed no round.
        self.n_iter_ = self.history_[-1]["epoch"] if self.history_ else 0
        return self

    def _next_seed(self, *, warm_start: bool) -> int:
        """Return the seed of this fit.

        A warm start has its own, so that the order of samples is not repeated.
        """
        if warm_start:
            return int(np.random.SeedSequence((self.seed_, self.n_iter_)).generate_state(1)[0])
        if isinstance(self.random_state, int | np.integer):
            self.seed_ = int(self.random_state)
        else:
            self.seed_ = int(check_random_state(self.random_state).randint(2**31))
        return self.seed_

    def _build_options(self, y: Any) -> dict[str, Any]:
        """Return the options of ``build``; some depend on the encoded targets."""
        options = dict(self.build_options or {})
        if self.schedule is None:
            return options
        schedule = defaults.make_schedule(self.schedule, check_count("num_epochs", self.num_epochs))
        return dict(schedule=schedule, **options)

    def _fit_options(self, x: Any, y: Any, sample_weight: Any, seed: int) -> dict[str, Any]:
        data = {"x": x, "y": y, "sample_weight": sample_weight}
        if self.validation_fraction is not None:
            data = self._split(data, seed)
        parameters = {name: getattr(self, name) for name in _FIT_PARAMETERS}
        # dict() raises TypeError for an option that is set twice.
        options = dict(**data, progress=bool(self.verbose), **parameters, **self.fit_options or {})
        callbacks = list(self.callbacks)
        if self.n_iter_no_change is not None:
            monitor = "val_loss" if "validation_data" in options else "loss"
            callbacks.append(EarlyStopping(monitor, patience=self.n_iter_no_change))
        return dict(callbacks=callbacks, **options)

    def _split(self, data: dict[str, Any], seed: int) -> dict[str, Any]:
        """Split off a share of the samples as ``validation_data``."""
        fraction = check_fraction("validation_fraction", self.validation_fraction)
        arrays = {name: array for name, array in data.items() if array is not None}
        strata = data["y"] if is_classifier(self) else None
        parts = train_test_split(
            *arrays.values(), test_size=fraction, random_state=seed % 2**32, stratify=strata
        )
        training = dict(zip(arrays, parts[::2], strict=True))
        validation = dict(zip(arrays, parts[1::2], strict=True))
        return {**data, **training, "validation_data": (validation["x"], validation["y"])}

    def _predict_outputs(self, X: Any) -> NDArray[Any]:
        """Return the outputs of the network, computed in this process."""
        check_is_fitted(self)
        return np.asarray(self._predictor(self.module_).predict(self._validated(X, reset=False)))

    def _validated(self, X: Any, *y: Any, reset: bool, **target_checks: bool) -> Any:
        """Return validated samples for prediction, or with ``y`` samples and targets for training.

        ``reset`` sets ``n_features_in_``; ``target_checks`` are options of ``validate_data``.
        """
        is_blocked = hasattr(X, "tensors")  # a BlockedTensor, or dislib's tensor
        if isinstance(X, FileDataset) or is_blocked:
            raise TypeError(
                f"X is a {type(X).__name__}; give an array, or train on it with DistributedTrainer"
            )
        return validate_data(
            self,
            X,
            *y,
            reset=reset,
            dtype=None if self.dtype is None else np.dtype(self.dtype),
            allow_nd=self.net is not None,
            **target_checks,
        )

    def _predictor(self, net: nn.Module) -> DistributedTrainer:
        """Return a trainer that predicts with the network in this process."""
        options = dict(self.build_options or {})
        used = {name: options[name] for name in _PREDICTION_OPTIONS if name in options}
        gpus = min(options.get("num_gpu", 0), devices.accelerators())
        trainer = DistributedTrainer(
            1, engine="serial", seed=0, threads=self.threads or torch.get_num_threads()
        )
        trainer.build(net, defaults.make_optimizer(None, None), "mse", num_gpu=gpus, **used)
        trainer.set_parameters(trainer.get_parameters())  # these are meant, with or without a fit
        return trainer

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "module_")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        # The order of arrival changes rounding.
        tags.non_deterministic = Merge.of(self.merge).kind in ("commutative", "parameter_server")
        return tags


def _continued(before: History, history: History) -> History:
    """Return a history followed by that of a warm start, whose rounds and epochs count on."""
    rounds = len(before)
    epochs = before[-1]["epoch"] if before else 0
    records = [
        {**record, "round": record["round"] + rounds, "epoch": record["epoch"] + epochs}
        for record in history
    ]
    return History([*before, *records])
