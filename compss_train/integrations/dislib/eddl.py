"""The classes of ``dislib.eddl``, with EDDL's names and numbers, for networks of torch.

Scripts for ``dislib.eddl`` end their networks in a softmax, leave the optimizers' numbers to dislib, and hold
parameters as one list of arrays for each layer. docs/from-dislib.md lists what is the same and what is not.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from compss_train._utils.validation import warn_user
from compss_train.integrations.dislib.encapsulated import Encapsulated
from compss_train.model.losses import LOSSES, BatchFunction, categorical_cross_entropy, resolve_function
from compss_train.model.metrics import MetricSpec
from compss_train.model.parameters import to_array

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
"""The numbers that dislib gives EDDL's optimizers where the dict has none, and torch has others."""

EDDL_LOSSES: Mapping[str, BatchFunction] = {
    **LOSSES,
    **dict.fromkeys(("cross_entropy", "ce", "softmax_cross_entropy"), categorical_cross_entropy),
}
"""The losses by name, all cross entropies of probabilities: in EDDL the network applies the softmax."""


class EncapsulatedFunctionsDistributedEddl(Encapsulated[Layers]):
    """Trains a torch module, with the interface of ``dislib.eddl``. EDDL itself is not used.

    The eight fits and ``get_parameters`` return the parameters of each layer, an array of one list of arrays for
    each module without children; ``trainer.model()`` returns the trained module, ``trainer.get_parameters()`` the
    arrays by name. Losses and optimizers have EDDL's meanings and dislib's numbers, and x is divided by 255, as
    dislib does: docs/from-dislib.md. ``engine``, ``seed`` and ``threads`` are those of ``DistributedTrainer``.
    Attributes: ``num_workers``, ``model_parameters`` (what ``get_parameters`` returns), ``compss_object`` (one
    ``EddlDistributedConmutativo`` for each worker), ``num_gpu``, ``num_gpus``, ``num_gpus_per_worker``, ``new_lr``,
    and ``trainer``, the ``DistributedTrainer``.
    """

    num_gpus: NDArray[np.int8] | None = None
    new_lr: float | None = None

    def build(
        self,
        net: nn.Module,
        optimizer: Mapping[str, Any],
        loss: str | BatchFunction,
        metric: MetricSpec,
        num_gpu: int = 0,
        num_nodes: int = 0,
        **options: Any,
    ) -> None:
        """Set the module, the optimizer as a dict, and loss and metric by their names in EDDL.

        The cross entropies take probabilities, such as the outputs of a softmax; ``torch.nn.CrossEntropyLoss()``
        takes logits. ``transform`` replaces the division of x by 255; this and other ``options`` are those of
        ``DistributedTrainer.build``. Warns of a ``weight_decay``, which means something else here, unless there is
        a ``schedule``. Raises the exceptions of ``DistributedTrainer.build``.
        """
        function = resolve_function("loss", loss, EDDL_LOSSES)
        options = {"transform": _scaled, **options}
        spec = _with_defaults(optimizer)
        self._build(net, spec, function, metric, num_gpu=num_gpu, num_nodes=num_nodes, **options)
        if "schedule" not in options:
            _warn_of_weight_decay(optimizer)
        self.num_gpus = np.ones(num_gpu, np.int8) if num_gpu else None
        self.new_lr = optimizer.get("lr")
        self.compss_object = [EddlDistributedConmutativo() for _ in range(self.num_workers)]
        for each in self.compss_object:
            each.build(net, optimizer, loss, metric, num_gpu)
        self.model_parameters = layers_of(net)

    def _module(self, parameters: Layers) -> nn.Module:
        net = self.trainer.model()
        _load_layers(net, parameters)
        return net

    def _result(self, net: nn.Module) -> Layers:
        return layers_of(net)


class EddlDistributedConmutativo:
    """What one worker trains with, and dislib's two steps of training for scripts that call them themselves.

    They run in the calling process; fits train in tasks.
    """

    initialized = False

    def build(
        self,
        net: nn.Module,
        optimizer: Mapping[str, Any],
        loss: str | BatchFunction,
        metric: MetricSpec,
        num_gpu: int = 0,
        gpu: Any = 0,
    ) -> None:
        """Set ``model``, ``optimizer``, ``loss``, ``metric`` and ``num_gpu``, and ``initialized``."""
        self.model, self.optimizer, self.loss, self.metric = net, optimizer, loss, metric
        self.num_gpu, self.initialized = num_gpu, True

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
        alone.build(self.model, self.optimizer, self.loss, self.metric)
        alone.model_parameters = initial_parameters
        return alone.fit_synchronous_with_GPU(
            x_train, y_train, num_batches, 1, shuffle_block_data=shuffle_block_data, progress=False
        )

    def aggregate_parameters_async(self, model_params: Layers, parameters_to_aggregate: Layers) -> Layers:
        """Set the first parameters to the mean of the two, and return them."""
        for layer, other in zip(model_params, parameters_to_aggregate, strict=True):
            layer[:] = [((a + b) / 2).astype(a.dtype) for a, b in zip(layer, other, strict=True)]
        return model_params


def _with_defaults(optimizer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dict of an optimizer with dislib's numbers where it has none; ``TypeError`` for anything else."""
    if not isinstance(optimizer, Mapping):
        raise TypeError(f'optimizer={optimizer!r}: give a dict, for example {{"optimizer": "sgd", "lr": 0.01}}')
    return {**OPTIMIZER_DEFAULTS.get(str(optimizer.get("optimizer")), {}), **optimizer}


def _warn_of_weight_decay(optimizer: Mapping[str, Any]) -> None:
    """Warn of a weight decay, which is not applied by EDDL, but changes the learning rate of dislib."""
    if decay := optimizer.get("weight_decay"):
        warn_user(
            f"weight_decay={decay} is torch's here; EDDL's optimizers ignore it, and dislib divides the learning "
            f"rate by {1 + decay} from the third epoch of a fit on. For that, leave it out of the dict and give "
            f"build(..., schedule=lambda epoch: 1 if epoch < 2 else 1 / {1 + decay})"
        )


def _scaled(batch: torch.Tensor) -> torch.Tensor:
    """Return a batch of x in float32 and divided by 255, as dislib's tasks divide each block."""
    return batch.float() / 255


def layers_of(net: nn.Module) -> Layers:
    """Return the parameters and buffers of each layer of a network, copies of the arrays, in torch's shapes."""
    layers = list(_layers(net))
    result = np.empty(len(layers), dtype=object)
    for number, tensors in enumerate(layers):
        result[number] = [np.array(to_array(name, tensor)) for name, tensor in tensors.items()]
    return result


def _load_layers(net: nn.Module, layers: Any) -> None:
    """Copy the arrays of ``layers_of`` into a network; raise ``ValueError`` if their numbers or shapes differ."""
    own = list(_layers(net))
    shapes = [[tuple(tensor.shape) for tensor in tensors.values()] for tensors in own]
    given = [[np.shape(array) for array in layer] for layer in layers]
    if given != shapes:
        raise ValueError(f"the layers have arrays of shapes {given}, but those of the network {shapes}")
    with torch.no_grad():
        for tensors, layer in zip(own, layers, strict=True):
            for tensor, array in zip(tensors.values(), layer, strict=True):
                tensor.copy_(torch.from_numpy(np.array(array)))


def _layers(net: nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Iterate over the tensors of each layer: a module without children, or with tensors of its own."""
    for module in net.modules():
        own = {name: tensor for name, tensor in module.state_dict().items() if "." not in name}
        if own or not any(True for _ in module.children()):
            yield own
