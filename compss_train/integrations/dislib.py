"""The interface of dislib's distributed training: programs for dislib change one import.

The classes have the names, arguments, attributes and kinds of results of ``dislib.pytorch`` and ``dislib.eddl``
(dislib 1.0), and train with ``DistributedTrainer``. Results differ from dislib's, which loses samples, weights and
optimizer states: docs/from-dislib.md lists the differences.

The class of ``dislib.eddl`` has EDDL's names and defaults, and trains torch networks. Scripts for it end their
networks in a softmax, rely on dislib's defaults for optimizers, and hold parameters as one list of arrays per
layer.
"""

import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from compss_train._utils.validation import check_count, warn_user
from compss_train.engines import Engine, engine_class
from compss_train.exceptions import NotBuiltError
from compss_train.model import losses, metrics, optimizers
from compss_train.model import parameters as params
from compss_train.trainer import DistributedTrainer
from compss_train.training.merge import Merge
from compss_train.training.named_fits import Fitted, NamedFits

GPU_UNITS = "ComputingUnitsGPUs"
"""Environment variable with the number of GPUs of dislib's tasks."""

LossFactory: TypeAlias = Callable[[], losses.BatchFunction | str]
"""The class of a loss, or another callable that makes one."""
Layers: TypeAlias = NDArray[np.object_]
"""The parameters of each layer, a list of arrays: ``layers[0]`` may be ``[weight, bias]``, ``layers[1]`` ``[]``."""

OPTIMIZER_DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "adam": {"epsilon": 1e-6},
    "rmsprop": {"rho": 0.9, "epsilon": 1e-5},
    "adagrad": {"epsilon": 1e-5},
    "adamax": {"epsilon": 1e-5},
    "adadelta": {"rho": 0.9, "epsilon": 1e-5},
    "nadam": {"epsilon": 1e-5, "schedule_decay": 0.0},
}
"""dislib's defaults for EDDL's optimizers where they differ from torch's."""

EDDL_LOSSES: Mapping[str, losses.BatchFunction] = {
    **losses.LOSSES,
    **dict.fromkeys(("cross_entropy", "ce", "softmax_cross_entropy"), losses.categorical_cross_entropy),
}
"""The losses by name, all cross entropies of probabilities: in EDDL the network applies the softmax."""


def _in_one_block(num_batches: int, shuffle_block_data: bool) -> dict[str, Any]:
    """Return the arguments of a fit that trains on the batches of one block once."""
    order = {"shuffle": None, "shuffle_block_data": shuffle_block_data}
    return {"num_batches_per_worker": num_batches, "num_epochs": 1, "progress": False, **order}


class PytorchDistributed:
    """What one worker trains with in ``dislib.pytorch``: an entry of ``compss_object``.

    Fits train in tasks of their own. The methods are the two steps of an epoch, for scripts that call them
    themselves; they run in the calling process, on the CPU.
    """

    def build(
        self,
        net: nn.Module,
        loss: LossFactory | str,
        optimizer: Callable[..., torch.optim.Optimizer],
        optimizer_parameters: Mapping[str, Any],
        **options: Any,
    ) -> None:
        """Set the attributes ``model``, ``loss``, ``optimizer``, ``optimizer_parameters`` and ``options``."""
        self.model, self.loss, self.options = net, loss, options
        self.optimizer, self.optimizer_parameters = optimizer, optimizer_parameters

    def train_cnn_batch_GPU(
        self, model_parameters: nn.Module, x_train: Any, y_train: Any, num_batches: int, shuffle_block_data: bool
    ) -> nn.Module:
        """Return a copy of the module after training on the batches of one block."""
        alone = EncapsulatedFunctionsDistributedPytorch(1, engine="serial")
        alone.build(model_parameters, self.optimizer, self.loss, self.optimizer_parameters, **self.options)
        return alone.fit(x_train, y_train, **_in_one_block(num_batches, shuffle_block_data))

    def aggregate_parameters_async(self, model_params: nn.Module, parameters_to_aggregate: nn.Module) -> nn.Module:
        """Set the parameters of the first module to the mean of the two, and return it."""
        own, other = (params.from_module(each) for each in (model_params, parameters_to_aggregate))
        params.load_into(model_params, params.halve(own, other))
        return model_params


class EddlDistributedConmutativo:
    """What one worker trains with in ``dislib.eddl``: an entry of ``compss_object``; see ``PytorchDistributed``."""

    def build(
        self,
        net: nn.Module,
        optimizer: Mapping[str, Any],
        loss: str | losses.BatchFunction,
        metric: metrics.MetricSpec,
        num_gpu: int = 0,
        **options: Any,
    ) -> None:
        """Set the attributes ``model``, ``optimizer``, ``loss``, ``metric``, ``num_gpu`` and ``options``."""
        self.model, self.optimizer, self.loss, self.metric = net, optimizer, loss, metric
        self.num_gpu, self.options = num_gpu, options

    def train_batch_GPU(
        self,
        initial_parameters: Layers,
        x_train: Any,
        y_train: Any,
        dtype: Any,
        num_batches: int,
        epoch: int = 1,
        shuffle_block_data: bool = True,
    ) -> Layers:
        """Return the parameters after training on the batches of one block; ``dtype`` and ``epoch`` are unused."""
        alone = EncapsulatedFunctionsDistributedEddl(1, engine="serial")
        alone.build(self.model, self.optimizer, self.loss, self.metric, **self.options)
        alone.model_parameters = initial_parameters
        return alone.fit(x_train, y_train, **_in_one_block(num_batches, shuffle_block_data))

    def aggregate_parameters_async(self, model_params: Layers, parameters_to_aggregate: Layers) -> Layers:
        """Set the first parameters to the mean of the two, and return them."""
        for layer, other in zip(model_params, parameters_to_aggregate, strict=True):
            pairs = zip(layer, other, strict=True)
            layer[:] = [((own + its) / 2).astype(own.dtype) for own, its in pairs]
        return model_params


class Encapsulated(NamedFits[Fitted]):
    """What the classes of ``dislib.pytorch`` and ``dislib.eddl`` have in common.

    A fit starts from ``model_parameters``, which a script may replace or change, and replaces it by the result.
    """

    _worker_object: ClassVar[type[Any]]
    """The class of the entries of ``compss_object``."""

    def __init__(
        self,
        num_workers: int = 10,
        *,
        engine: str | Engine = "auto",
        seed: int | None = None,
        threads: int | None = None,
    ) -> None:
        self.num_workers = num_workers
        self._nodes = (engine_class(engine) if isinstance(engine, str) else engine).nodes()
        self.trainer = DistributedTrainer(num_workers, engine=engine, seed=seed, threads=threads)
        self.model_parameters: Fitted | None = None
        self.compss_object = [self._worker_object() for _ in range(num_workers)]
        self.num_gpu = 0

    def _build(self, *args: Any, num_gpu: int, **options: Any) -> None:
        """Build the trainer for those of the requested GPUs that exist; dislib's scripts also run without any."""
        self.num_gpu = check_count("num_gpu", num_gpu, least=0)
        usable = 0 if os.environ.get(GPU_UNITS) == "0" else num_gpu
        available = sum(node.gpus for node in self._nodes or Engine.nodes())
        if usable and not available:
            hint = f"set {GPU_UNITS}=0 to train on the CPU without this warning"
            warn_user(f"num_gpu={num_gpu}, but there are no GPUs for torch: training on the CPU; {hint}")
        self.trainer.build(*args, **{**options, "num_gpu": min(usable, available)})

    def get_parameters(self) -> Fitted | None:
        """Return ``model_parameters``: from the last fit, else from ``build``, or ``None`` before ``build``."""
        return self.model_parameters

    def fit(self, *args: Any, **kwargs: Any) -> Fitted:
        """Train with ``DistributedTrainer.fit``, which all eight fits call, and return the new parameters.

        By default each block starts with a new optimizer, as in dislib.

        After an exception ``model_parameters`` are those that ``DistributedTrainer.fit`` keeps then.
        """
        if self.model_parameters is None:
            raise NotBuiltError("this object has no network yet; call build(net, optimizer, loss, ...) first")
        merge = Merge.of(kwargs.get("merge", "synchronous"))
        if merge.optimizer_state is None and merge.preset is None and kwargs.get("buffer") is None:
            kwargs["merge"] = replace(merge, optimizer_state="reset_blocks")
        self.trainer.set_parameters(params.from_module(self._module(self.model_parameters)))
        try:
            self.trainer.fit(*args, **kwargs)
        finally:
            self.model_parameters = trained = self._result(self.trainer.model())
        return trained

    @abstractmethod
    def _module(self, parameters: Fitted) -> nn.Module:
        """Return a module with these parameters."""

    @abstractmethod
    def _result(self, net: nn.Module) -> Fitted:
        """Return what fits return, of the trained module."""


class EncapsulatedFunctionsDistributedPytorch(Encapsulated[nn.Module]):
    """Trains a torch module, with the interface of ``dislib.pytorch``.

    The eight fits and ``get_parameters`` return a copy of the module given to ``build``, with the trained
    parameters. ``engine``, ``seed`` and ``threads`` are those of ``DistributedTrainer``. Attributes:
    ``num_workers``, ``model_parameters`` (the module that ``get_parameters`` returns), ``compss_object`` (a list
    with a ``PytorchDistributed`` for each worker), ``num_gpu``, and ``trainer``, the ``DistributedTrainer``.
    """

    _worker_object = PytorchDistributed

    def build(
        self,
        net: nn.Module,
        optimizer: Callable[..., torch.optim.Optimizer],
        loss: LossFactory | str,
        optimizer_parameters: Mapping[str, Any],
        num_gpu: int = 0,
        num_nodes: int = 0,
        **options: Any,
    ) -> None:
        """Set the module, the class of the optimizer with its keyword arguments, and the class or name of the loss.

        A module given as the loss is used directly.

        ``num_gpu`` is the number of GPUs to use, on all nodes together. Without GPUs (no CUDA, or
        ``ComputingUnitsGPUs=0``) workers train on the CPU, as in dislib. Samples are converted to float32 unless
        you give a ``transform``. ``options`` are those of ``DistributedTrainer.build``.

        Raises the exceptions of ``DistributedTrainer.build``.
        """
        spec = {"optimizer": optimizer, **optimizer_parameters}
        options = {"transform": torch.Tensor.float, **options}
        made = loss if isinstance(loss, str | nn.Module) else loss()
        self._build(net, spec, made, num_gpu=num_gpu, num_nodes=num_nodes, **options)
        for each in self.compss_object:
            each.build(net, made, optimizer, optimizer_parameters, **options)
        self.model_parameters = net

    def _module(self, parameters: nn.Module) -> nn.Module:
        if not isinstance(parameters, nn.Module):
            raise TypeError(f"model_parameters is a {type(parameters).__name__}; give a module like that of build")
        return parameters

    def _result(self, net: nn.Module) -> nn.Module:
        return net


class EncapsulatedFunctionsDistributedEddl(Encapsulated[Layers]):
    """Trains a torch module, with the interface of ``dislib.eddl``. EDDL itself is not used.

    The eight fits and ``get_parameters`` return the parameters by layer: an array with one list of arrays for each
    module without children. ``trainer.model()`` returns the trained module, and ``trainer.get_parameters()`` the
    arrays by name. Losses and optimizers have EDDL's meanings and dislib's defaults, and x is divided by 255, as in
    dislib: docs/reference/integrations.md. ``engine``, ``seed`` and ``threads`` are those of
    ``DistributedTrainer``. Attributes: ``num_workers``, ``model_parameters`` (what ``get_parameters`` returns),
    ``compss_object`` (a list with an ``EddlDistributedConmutativo`` for each worker), ``num_gpu``, and ``trainer``,
    the ``DistributedTrainer``.
    """

    _worker_object = EddlDistributedConmutativo

    def build(
        self,
        net: nn.Module,
        optimizer: Mapping[str, Any],
        loss: str | losses.BatchFunction,
        metric: metrics.MetricSpec,
        num_gpu: int = 0,
        num_nodes: int = 0,
        **options: Any,
    ) -> None:
        """Set the module, the optimizer (a dict), and loss and metric by EDDL's names.

        The cross entropies take probabilities, such as the outputs of a softmax; ``torch.nn.CrossEntropyLoss()``
        takes logits. A ``transform`` replaces the division of x by 255. ``options`` are those of
        ``DistributedTrainer.build``. Unless you give a ``schedule``, a ``weight_decay`` causes a warning, because
        it has another meaning in dislib. Raises the exceptions of ``DistributedTrainer.build``.
        """
        function = losses.resolve_function("loss", loss, EDDL_LOSSES)
        if not isinstance(optimizer, Mapping):
            raise TypeError(f'optimizer={optimizer!r}: give a dict, for example {{"optimizer": "sgd", "lr": 0.01}}')
        name = str(optimizer.get("optimizer"))  # in one spelling: either replaces a default
        spec = {
            **optimizers.in_torch(name, OPTIMIZER_DEFAULTS.get(name, {})),
            **optimizers.in_torch(name, optimizer),
        }
        options = {"transform": scaled, **options}
        self._build(net, spec, function, metric, num_gpu=num_gpu, num_nodes=num_nodes, **options)
        if "schedule" not in options and (decay := optimizer.get("weight_decay")):
            warn_user(
                f"weight_decay={decay} is torch's here; EDDL's optimizers ignore it, and dislib divides the "
                f"learning rate by {1 + decay} from the third epoch of a fit on. For that, leave it out of the "
                f"dict and give build(..., schedule=lambda epoch: 1 if epoch < 2 else 1 / {1 + decay})"
            )
        for each in self.compss_object:
            each.build(net, optimizer, loss, metric, num_gpu, **options)
        self.model_parameters = layers_of(net)

    def _module(self, parameters: Layers) -> nn.Module:
        net = self.trainer.model()
        _load_layers(net, parameters)
        return net

    def _result(self, net: nn.Module) -> Layers:
        return layers_of(net)


def scaled(batch: torch.Tensor) -> torch.Tensor:
    """Return a batch of x in float32 and divided by 255, as dislib's tasks divide each block."""
    return batch.float() / 255


def layers_of(net: nn.Module) -> Layers:
    """Return the parameters and buffers of each layer of a network, copies of the arrays, in torch's shapes."""
    layers = list(_layers(net))
    result = np.empty(len(layers), dtype=object)
    for number, tensors in enumerate(layers):
        result[number] = [np.array(array) for array in params.to_arrays(tensors).values()]
    return result


@torch.no_grad()
def _load_layers(net: nn.Module, layers: Any) -> None:
    """Copy the arrays of ``layers_of`` into a network; raise ``ValueError`` if their numbers or shapes differ."""
    tensors = [tensor for layer in _layers(net) for tensor in layer.values()]
    arrays = [np.array(array) for layer in layers for array in layer]
    shapes, given = [tuple(tensor.shape) for tensor in tensors], [array.shape for array in arrays]
    if given != shapes:
        raise ValueError(f"the layers have arrays of shapes {given}, but those of the network {shapes}")
    for tensor, array in zip(tensors, arrays, strict=True):
        tensor.copy_(torch.from_numpy(array))


def _layers(net: nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Iterate over the tensors of each layer: a module without children, or with tensors of its own."""
    for module in net.modules():
        own = {name: tensor for name, tensor in module.state_dict().items() if "." not in name}
        if own or not any(True for _ in module.children()):
            yield own
