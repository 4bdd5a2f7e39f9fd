"""The interface of ``dislib.eddl``, which has EDDL's names and defaults, and trains torch networks.

Scripts for it end their networks in a softmax, rely on dislib's defaults for optimizers, and hold
parameters as one list of arrays per layer.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from compss_train._utils.private_names import own_tensors
from compss_train._utils.validation import warn_user
from compss_train.integrations.dislib.encapsulated import Encapsulated, in_one_block
from compss_train.model import losses, optimizers
from compss_train.model import parameters as params
from compss_train.model.resolving import MetricSpec, resolve_loss

Layers: TypeAlias = NDArray[np.object_]
"""The parameters of each layer, a list of arrays such as ``[weight, bias]`` or ``[]``."""

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
    **dict.fromkeys(
        ("cross_entropy", "ce", "softmax_cross_entropy"), losses.categorical_cross_entropy
    ),
}
"""The losses by name, with cross entropies of probabilities: EDDL's networks apply the softmax."""


class EddlDistributedConmutativo:
    """What one worker trains with in ``dislib.eddl``: an entry of ``compss_object``.

    It is used as a ``PytorchDistributed``.
    """

    def build(
        self,
        net: nn.Module,
        optimizer: Mapping[str, Any],
        loss: str | losses.BatchFunction,
        metric: MetricSpec,
        num_gpu: int = 0,
        **options: Any,
    ) -> None:
        """Set the attributes that are called as the parameters; ``model`` is ``net``."""
        self.model = net
        self.optimizer = optimizer
        self.loss = loss
        self.metric = metric
        self.num_gpu = num_gpu
        self.options = options

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
        """Return the parameters after training on the batches of one block.

        ``dtype`` and ``epoch`` are unused.
        """
        alone = EncapsulatedFunctionsDistributedEddl(1, engine="serial")
        alone.build(self.model, self.optimizer, self.loss, self.metric, **self.options)
        alone.model_parameters = initial_parameters
        options = in_one_block(num_batches, shuffle_block_data=shuffle_block_data)
        return alone.fit(x_train, y_train, **options)

    def aggregate_parameters_async(
        self, model_params: Layers, parameters_to_aggregate: Layers
    ) -> Layers:
        """Set the first parameters to the mean of the two, and return them."""
        for first_layer, second_layer in zip(model_params, parameters_to_aggregate, strict=True):
            first_layer[:] = [
                ((first + second) / 2).astype(first.dtype)
                for first, second in zip(first_layer, second_layer, strict=True)
            ]
        return model_params


class EncapsulatedFunctionsDistributedEddl(Encapsulated[Layers]):
    """Trains a torch module, with the interface of ``dislib.eddl``. EDDL itself is not used.

    The eight fits and ``get_parameters`` return the parameters by layer: an array with one list of
    arrays for each module without children. ``trainer.model()`` returns the trained module, and
    ``trainer.get_parameters()`` the arrays by name. Losses and optimizers have EDDL's meanings and
    dislib's defaults, and x is divided by 255, as in dislib: docs/reference/integrations.md.
    ``engine``, ``seed`` and ``threads`` are those of ``DistributedTrainer``. Attributes:
    ``num_workers``, ``model_parameters`` (what ``get_parameters`` returns), ``compss_object`` (a
    list with an ``EddlDistributedConmutativo`` for each worker), ``num_gpu``, and ``trainer``, the
    ``DistributedTrainer``.
    """

    _worker_object = EddlDistributedConmutativo

    def build(
        self,
        net: nn.Module,
        optimizer: Mapping[str, Any],
        loss: str | losses.BatchFunction,
        metric: MetricSpec,
        num_gpu: int = 0,
        num_nodes: int = 0,
        **options: Any,
    ) -> None:
        """Set the module, the optimizer (a dict), and loss and metric by EDDL's names.

        The cross entropies take probabilities, such as the outputs of a softmax;
        ``torch.nn.CrossEntropyLoss()`` takes logits. A ``transform`` replaces the division of x by
        255. ``options`` are those of ``DistributedTrainer.build``. Unless you give a ``schedule``,
        a ``weight_decay`` causes a warning, because it has another meaning in dislib. Raises the
        exceptions of ``DistributedTrainer.build``.
        """
        function = resolve_loss(loss, EDDL_LOSSES)
        if not isinstance(optimizer, Mapping):
            raise TypeError(
                f'optimizer={optimizer!r}: give a dict, for example {{"optimizer": '
                '"sgd", "lr": 0.01}'
            )
        name = str(optimizer.get("optimizer"))  # in one spelling: either replaces a default
        spec = {
            **optimizers.in_torch(name, OPTIMIZER_DEFAULTS.get(name, {})),
            **optimizers.in_torch(name, optimizer),
        }
        options = {"transform": scaled, **options}
        self._build(net, spec, function, metric, num_gpu=num_gpu, num_nodes=num_nodes, **options)
        decay = optimizer.get("weight_decay")
        if "schedule" not in options and decay:
            warn_user(
                f"weight_decay={decay} is torch's here; EDDL's optimizers ignore it, and dislib "
                f"divides the learning rate by {1 + decay} from the third epoch of a fit on. For "
                "that, leave it out of the dict and give build(..., schedule=lambda epoch: 1 if "
                f"epoch < 2 else 1 / {1 + decay})"
            )
        for worker in self.compss_object:
            worker.build(net, optimizer, loss, metric, num_gpu=num_gpu, **options)
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
    """Return copies of the parameters and buffers of each layer of a network, in torch's shapes."""
    layers = list(_layers(net))
    result = np.empty(len(layers), dtype=object)
    for number, tensors in enumerate(layers):
        result[number] = [np.array(array) for array in params.to_arrays(tensors).values()]
    return result


@torch.no_grad()
def _load_layers(net: nn.Module, layers: Any) -> None:
    """Copy the arrays of ``layers_of`` into a network.

    Raises ``ValueError`` if their numbers or shapes differ.
    """
    tensors = [tensor for layer in _layers(net) for tensor in layer.values()]
    arrays = [np.array(array) for layer in layers for array in layer]
    net_shapes = [tuple(tensor.shape) for tensor in tensors]
    shapes = [array.shape for array in arrays]
    if shapes != net_shapes:
        raise ValueError(
            f"the layers have arrays of shapes {shapes}, but those of the network {net_shapes}"
        )
    for tensor, array in zip(tensors, arrays, strict=True):
        tensor.copy_(torch.from_numpy(array))


def _layers(net: nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Iterate over the tensors of each layer.

    A layer is a module without children, or with tensors of its own.
    """
    for module in net.modules():
        tensors = {
            name: tensor for name, tensor in own_tensors(module).items() if tensor is not None
        }
        if tensors or not any(True for _ in module.children()):
            yield tensors
