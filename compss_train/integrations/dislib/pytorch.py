"""The interface of ``dislib.pytorch``, in dislib 1.0, its next release and the paper's forks."""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from numbers import Number
from typing import Any, NoReturn, TypeAlias, TypeVar, Unpack, cast

import numpy as np
import torch
from torch import nn

from compss_train._utils.validation import entry_point, warn_user
from compss_train.callbacks import WorkerCallback, WorkerContext
from compss_train.data import BlockedTensor
from compss_train.data.blocked import as_blocked
from compss_train.integrations.dislib.curves import (
    Curves,
    CurvesOfRounds,
    Score,
    ScoreInTraining,
    accuracy,
)
from compss_train.integrations.dislib.encapsulated import Encapsulated, as_grid, in_one_block
from compss_train.model import losses
from compss_train.model import parameters as params
from compss_train.model.commutative_updates import halve
from compss_train.model.resolving import resolve_loss
from compss_train.model.schedule import Schedule
from compss_train.training.named_fits import FitKeywords

LossFactory: TypeAlias = Callable[[], losses.BatchFunction | str]
"""The class of a loss, or another callable that makes one."""

_RELEASE = ("num_gpu", "num_nodes")
"""The arguments of ``build`` after the fourth, in dislib 1.0."""
_FORKS = ("scheduler", "T_max", "eta_min", *_RELEASE)
"""Those in the paper's forks."""
_NEXT = ("gradient_clipping", *_FORKS)
"""Those in dislib's next release."""
_ORDER = ("shuffle_blocks", "shuffle_block_data")
"""The arguments of ``fit_asynchronous_with_GPU`` after the fourth, in dislib 1.0."""
_CURVES = ("x_test", "y_test", *_ORDER, "return_loss")
"""Those in the paper's fork for training curves."""

_TestData: TypeAlias = tuple[BlockedTensor, torch.Tensor, torch.Tensor]
"""x, its targets for the score, and those for the loss."""
_Method = TypeVar("_Method", bound=Callable[..., Any])


def tensor_from_ds_array(*_: Any, **__: Any) -> NoReturn:
    """Raise ``NotImplementedError``: programs import this name, which no release of dislib has."""
    raise NotImplementedError(
        "no release of dislib has tensor_from_ds_array; write "
        "dislib.data.tensor.from_ds_array(array, shape)"
    )


def _ordered(order: Callable[[Sequence[Any]], Sequence[str]]) -> Callable[[_Method], _Method]:
    """Name the arguments of a method after the fourth.

    Their order differs between versions of dislib.
    """

    def decorate(method: _Method) -> _Method:
        @wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            later = args[4:]
            names = order(later) if later else ()
            if len(later) > len(names):
                raise TypeError(
                    f"{method.__name__}() was called with {len(args)} arguments; after the "
                    f"fourth it takes {', '.join(names)} here, as the fifth, {later[0]!r}, tells"
                )
            named = dict(zip(names, later, strict=False))
            repeated = ", ".join(sorted(named.keys() & kwargs))
            if repeated:
                raise TypeError(f"{method.__name__}() got several values for {repeated}")
            return method(self, *args[:4], **named, **kwargs)

        return cast(_Method, call)

    return decorate


def _build_order(later: Sequence[Any]) -> Sequence[str]:
    """Return the names of the arguments of ``build`` after the fourth."""
    fifth = later[0]
    if isinstance(fifth, Number):
        return _RELEASE
    if callable(fifth) or fifth is None:
        has_t_max = len(later) > 1 and isinstance(later[1], Number)
        return _FORKS if isinstance(fifth, type) or has_t_max else _NEXT
    raise TypeError(
        f"the fifth argument of build is {fifth!r}: give num_gpu, an integer; or scheduler, a "
        "class; or gradient_clipping, a function of the model; or name it"
    )


def _asynchronous_order(later: Sequence[Any]) -> Sequence[str]:
    """Return the names of the arguments of ``fit_asynchronous_with_GPU`` after the fourth."""
    fifth = later[0]
    if isinstance(fifth, bool | np.bool_):
        return _ORDER
    if fifth is None or isinstance(fifth, list) or hasattr(fifth, "shape"):
        return _CURVES
    raise TypeError(
        f"the fifth argument of fit_asynchronous_with_GPU is {fifth!r}: give shuffle_blocks, "
        "True or False; or x_test, a tensor; or name it"
    )


class PytorchDistributed:
    """What one worker trains with in ``dislib.pytorch``: an entry of ``compss_object``.

    Fits train in tasks of their own. The methods are the two steps of an epoch, for scripts that
    call them themselves; they run in the calling process, on the CPU.
    """

    def build(
        self,
        net: nn.Module,
        loss: LossFactory | str,
        optimizer: Callable[..., torch.optim.Optimizer],
        optimizer_parameters: Mapping[str, Any],
        **options: Any,
    ) -> None:
        """Set the attributes that are called as the parameters; ``model`` is ``net``."""
        self.model = net
        self.loss = loss
        self.options = options
        self.optimizer = optimizer
        self.optimizer_parameters = optimizer_parameters

    def train_cnn_batch_GPU(
        self,
        model_parameters: nn.Module,
        x_train: Any,
        y_train: Any,
        num_batches: int,
        shuffle_block_data: bool,
    ) -> nn.Module:
        """Return a copy of the module after training on the batches of one block."""
        alone = EncapsulatedFunctionsDistributedPytorch(1, engine="serial")
        alone.build(
            model_parameters, self.optimizer, self.loss, self.optimizer_parameters, **self.options
        )
        options = in_one_block(num_batches, shuffle_block_data=shuffle_block_data)
        return alone.fit(x_train, y_train, **options)

    def aggregate_parameters_async(
        self, model_params: nn.Module, parameters_to_aggregate: nn.Module
    ) -> nn.Module:
        """Set the parameters of the first module to the mean of the two, and return it."""
        first = params.from_module(model_params)
        second = params.from_module(parameters_to_aggregate)
        params.load_into(model_params, halve(first, second))
        return model_params


class EncapsulatedFunctionsDistributedPytorch(Encapsulated[nn.Module]):
    """Trains a torch module, with the interface of ``dislib.pytorch``.

    The eight fits and ``get_parameters`` return a copy of the module given to ``build``, with the
    trained parameters. ``engine``, ``seed`` and ``threads`` are those of ``DistributedTrainer``.
    Attributes: ``num_workers``, ``model_parameters`` (the module that ``get_parameters`` returns),
    ``compss_object`` (a list with a ``PytorchDistributed`` for each worker), ``num_gpu``, and
    ``trainer``, the ``DistributedTrainer``.

    Fits with ``x_test`` and ``y_test`` evaluate the merged network on these samples after every
    merge: blocked tensors, arrays, or lists of tensors. With ``return_loss=True``, and in the fits
    for training curves, the result is ``(net, training_loss, training_acc, validation_loss,
    validation_acc)``: lists with a number for each merge, those of the validation empty without
    ``x_test``. The accuracy of a network with a single output is NaN. Arguments by position have
    the order of dislib 1.0, of its next release or of the paper's forks, as the fifth tells.
    """

    _worker_object = PytorchDistributed

    @_ordered(_build_order)
    def build(
        self,
        net: nn.Module,
        optimizer: Callable[..., torch.optim.Optimizer],
        loss: LossFactory | str,
        optimizer_parameters: Mapping[str, Any],
        num_gpu: int = 0,
        num_nodes: int = 0,
        *,
        scheduler: Callable[..., torch.optim.lr_scheduler.LRScheduler] | None = None,
        T_max: int = 1,
        eta_min: float = 0.0,
        gradient_clipping: Callable[[nn.Module], Any] | None = None,
        **options: Any,
    ) -> None:
        """Set the module, the class of the optimizer with its keyword arguments, and the loss.

        The loss is a class or a name. A module given as the loss is used directly.
        ``CrossEntropyLoss`` also takes class numbers as floats or in a column, and one-hot rows of
        integers.

        Workers use ``num_gpu`` GPUs of each of ``num_nodes`` nodes, as far as these exist. Without
        GPUs (no CUDA, or ``ComputingUnitsGPUs=0``) they train on the CPU. Samples are converted to
        float32 unless you give a ``transform``.

        ``scheduler`` is a class such as ``CosineAnnealingLR``, called as ``scheduler(optimizer,
        T_max=T_max, eta_min=eta_min)`` and stepped once an epoch; for other arguments give
        ``schedule=``. ``gradient_clipping`` is a function of the module that changes its gradients
        before each step. ``options`` are those of ``DistributedTrainer.build``.

        Raises the exceptions of ``DistributedTrainer.build``.
        """
        if scheduler is not None:
            if not callable(scheduler):
                raise TypeError(
                    f"scheduler={scheduler!r}: give a class such as CosineAnnealingLR, or None"
                )
            if "schedule" in options:
                raise TypeError("build() got scheduler= and schedule=; give one of them")
            _check_scheduler(scheduler)
            options["schedule"] = Schedule(partial(scheduler, T_max=T_max, eta_min=eta_min))
        if gradient_clipping is not None and not callable(gradient_clipping):
            raise TypeError(
                f"gradient_clipping={gradient_clipping!r}: give a function of the model, or None"
            )
        spec = {"optimizer": optimizer, **optimizer_parameters}
        options = {"transform": torch.Tensor.float, **options}
        function = resolve_loss(loss if isinstance(loss, str | nn.Module) else loss())
        if isinstance(function, nn.CrossEntropyLoss):
            function = copy.deepcopy(function)
            function.register_forward_pre_hook(_with_labels)
        self._build(net, spec, function, num_gpu=num_gpu, num_nodes=num_nodes, **options)
        self._loss = function
        self._gradient_clipping = gradient_clipping
        self._optimizer_parameters = dict(optimizer_parameters)
        for worker in self.compss_object:
            worker.build(
                net,
                function,
                optimizer,
                optimizer_parameters,
                gradient_clipping=gradient_clipping,
                **options,
            )
        self.model_parameters = net

    def fit(self, *args: Any, **kwargs: Any) -> nn.Module:
        """Train, as in the other class; ``gradient_clipping`` is called before each step."""
        if self.model_parameters is not None:
            self._warn_of_changed_optimizers()
            if self._gradient_clipping is not None:
                clipping = _BeforeSteps(self._gradient_clipping)
                kwargs["callbacks"] = [*kwargs.get("callbacks", ()), clipping]
        return super().fit(*args, **kwargs)

    def _warn_of_changed_optimizers(self) -> None:
        """Warn if a script has changed what ``build`` has set, which fits do not use."""
        built = self._optimizer_parameters
        for worker in self.compss_object:
            if worker.optimizer_parameters != built:
                warn_user(
                    f"fits ignore that optimizer_parameters, {built} in build, are "
                    f"{worker.optimizer_parameters} now: build again with net=get_parameters(), "
                    "or build with schedule=, a function of the epoch that returns a factor"
                )
                return

    @entry_point
    def fit_synchronous_with_GPU(
        self,
        x_train: Any,
        y_train: Any,
        num_batches_per_worker: int,
        num_epochs: int,
        shuffle_blocks: bool = True,
        shuffle_block_data: bool = True,
        make_validation: bool = True,
        return_loss: bool = False,
        x_test: Any = None,
        y_test: Any = None,
        **options: Unpack[FitKeywords],
    ) -> Any:
        """Average all workers at the end of every epoch.

        ``make_validation=False`` ignores ``x_test``.
        """
        data = (x_train, y_train, num_batches_per_worker, num_epochs)
        fit = partial(super().fit_synchronous_with_GPU, *data, shuffle_blocks, shuffle_block_data)
        test = (x_test, y_test) if make_validation else (None, None)
        return self._measured(fit, options, *test, return_loss=return_loss)

    @entry_point
    def fit_synchronous_every_n_epochs_with_GPU(
        self,
        x_train: Any,
        y_train: Any,
        num_batches_per_worker: int,
        num_epochs: int,
        n_epocs_sync: int = 1,
        shuffle_blocks: bool = True,
        shuffle_block_data: bool = True,
        x_test: Any = None,
        y_test: Any = None,
        return_loss: bool = False,
        **options: Unpack[FitKeywords],
    ) -> Any:
        """Average all workers every ``n_epocs_sync`` epochs and after the last."""
        data = (x_train, y_train, num_batches_per_worker, num_epochs)
        order = (shuffle_blocks, shuffle_block_data)
        fit = partial(super().fit_synchronous_every_n_epochs_with_GPU, *data, n_epocs_sync, *order)
        return self._measured(fit, options, x_test, y_test, return_loss=return_loss)

    @_ordered(_asynchronous_order)
    @entry_point
    def fit_asynchronous_with_GPU(
        self,
        x_train: Any,
        y_train: Any,
        num_batches_per_worker: int,
        num_epochs: int,
        shuffle_blocks: bool = True,
        shuffle_block_data: bool = True,
        *,
        x_test: Any = None,
        y_test: Any = None,
        return_loss: bool = False,
        **options: Unpack[FitKeywords],
    ) -> Any:
        """Average the workers that have arrived after every epoch.

        Late ones go on, and are merged later.
        """
        data = (x_train, y_train, num_batches_per_worker, num_epochs)
        fit = partial(super().fit_asynchronous_with_GPU, *data, shuffle_blocks, shuffle_block_data)
        return self._measured(fit, options, x_test, y_test, return_loss=return_loss)

    @entry_point
    def fit_synchronous_with_GPU_train_curves(
        self,
        x_train: Any,
        y_train: Any,
        num_batches_per_worker: int,
        num_epochs: int,
        shuffle_blocks: bool = True,
        shuffle_block_data: bool = True,
        complete_shuffle: bool = False,
        x_test: Any = None,
        y_test: Any = None,
        y_test_to_loss: Any = None,
        function_score: Score | None = None,
        **options: Unpack[FitKeywords],
    ) -> Curves:
        """Train as ``fit_synchronous_with_GPU``, and return the training curves with the module.

        ``complete_shuffle`` shuffles all samples together before each epoch. ``y_test_to_loss`` has
        the targets of the validation loss, ``y_test`` by default. ``function_score(true,
        predicted)`` of numpy arrays returns a number, by default the accuracy.
        """
        data = (x_train, y_train, num_batches_per_worker, num_epochs)
        order = (shuffle_blocks, shuffle_block_data)
        if complete_shuffle:
            fit = partial(super().fit_synchronous_shuffle_with_GPU, *data)
        else:
            fit = partial(super().fit_synchronous_with_GPU, *data, *order)
        return self._curves(fit, options, x_test, y_test, y_test_to_loss, function_score)

    @entry_point
    def fit_asynchronous_with_GPU_train_curves(
        self,
        x_train: Any,
        y_train: Any,
        num_batches_per_worker: int,
        num_epochs: int,
        shuffle_blocks: bool = True,
        shuffle_block_data: bool = True,
        complete_shuffle: bool = False,
        x_test: Any = None,
        y_test: Any = None,
        y_test_to_loss: Any = None,
        function_score: Score | None = None,
        **options: Unpack[FitKeywords],
    ) -> Curves:
        """Train as ``fit_asynchronous_with_GPU``, and return the training curves with the module.

        All else is as in the synchronous fit for training curves.
        """
        data = (x_train, y_train, num_batches_per_worker, num_epochs)
        order = (shuffle_blocks, shuffle_block_data)
        if complete_shuffle:
            fit = partial(super().fit_asynchronous_shuffle_with_GPU, *data)
        else:
            fit = partial(super().fit_asynchronous_with_GPU, *data, *order)
        return self._curves(fit, options, x_test, y_test, y_test_to_loss, function_score)

    def _measured(
        self,
        fit: Callable[..., nn.Module],
        options: FitKeywords,
        x_test: Any,
        y_test: Any,
        *,
        return_loss: bool,
    ) -> nn.Module | Curves:
        """Fit with validation data, and return the curves with the module if that is asked for."""
        if return_loss:
            return self._curves(fit, options, x_test, y_test)
        if x_test is not None or y_test is not None:
            options["validation_data"] = self._test_data(options, x_test, y_test)[:2]
        return fit(**options)

    def _curves(
        self,
        fit: Callable[..., nn.Module],
        options: FitKeywords,
        x_test: Any,
        y_test: Any,
        y_test_to_loss: Any = None,
        function_score: Score | None = None,
    ) -> Curves:
        """Fit, and return the curves with the module."""
        score = function_score or accuracy
        test = None
        if x_test is not None or y_test is not None:
            test = self._test_data(options, x_test, y_test, y_test_to_loss)
        curves = CurvesOfRounds(self._loss, score, test)
        options["callbacks"] = [*options.get("callbacks", ()), curves, ScoreInTraining(score)]
        return fit(**options), *curves.lists

    def _test_data(
        self, options: Mapping[str, Any], x_test: Any, y_test: Any, y_to_loss: Any = None
    ) -> _TestData:
        """Return the validation data; raise an exception unless they are complete."""
        if x_test is None:
            raise TypeError("y_test= needs x_test=, the other half of the validation data")
        if y_test is None:
            raise TypeError("x_test= needs y_test=, the other half of the validation data")
        if options.get("validation_data") is not None:
            raise TypeError("a fit takes x_test= and y_test=, or validation_data=, not both")
        x = as_blocked(as_grid(x_test), self.num_workers, "x_test")
        y = _whole(y_test, "y_test")
        to_loss = y if y_to_loss is None else _whole(y_to_loss, "y_test_to_loss")
        for name, targets in (("y_test", y), ("y_test_to_loss", to_loss)):
            if len(targets) != x.number_samples:
                raise ValueError(
                    f"x_test has {x.number_samples} samples and {name} {len(targets)}; "
                    "give one for each"
                )
        return x, y, to_loss

    def _module(self, parameters: nn.Module) -> nn.Module:
        if not isinstance(parameters, nn.Module):
            raise TypeError(
                f"model_parameters is a {type(parameters).__name__}; give a module "
                "like that of build"
            )
        return parameters

    def _result(self, net: nn.Module) -> nn.Module:
        return net


def _check_scheduler(scheduler: Callable[..., Any]) -> None:
    try:
        inspect.signature(scheduler).bind(None, T_max=1, eta_min=0.0)
    except TypeError as error:
        raise TypeError(
            f"scheduler={scheduler!r} gets an optimizer, T_max= and eta_min=, but {error}; give "
            "schedule=, called with the optimizer alone, such as functools.partial(StepLR, "
            "step_size=10)"
        ) from error


def _whole(values: Any, name: str) -> torch.Tensor:
    """Return all samples as one tensor."""
    return torch.as_tensor(as_blocked(as_grid(values), 1, name).collect())


def _with_labels(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return outputs and targets of a cross entropy, in any form that dislib's programs have.

    One-hot or soft targets get the dtype of the outputs; class numbers are integers, without a
    column. Raises ``ValueError`` for floating-point numbers that are not class numbers.
    """
    output, target, *further = arguments
    if target.shape == output.shape:
        return output, target.to(output.dtype), *further
    if target.dim() == output.dim() and target.shape[1:2] == (1,):
        target = target.squeeze(1)
    classes = target.long()
    if target.is_floating_point() and not torch.equal(classes.to(target.dtype), target):
        raise ValueError(
            f"targets of {target.dtype} {tuple(target.shape)} hold other numbers than classes, "
            "0, 1, 2 and so on; give those, or one-hot targets of the outputs' shape, "
            f"{tuple(output.shape)}"
        )
    return output, classes, *further


class _BeforeSteps(WorkerCallback):
    """Calls a function of the module before each step of the optimizer."""

    def __init__(self, function: Callable[[nn.Module], Any]) -> None:
        self._function = function

    def on_optimizer(self, context: WorkerContext) -> None:
        """Register the function with a new optimizer."""

        def hook(*_: Any) -> None:
            self._function(context.model)

        context.optimizer.register_step_pre_hook(hook)
