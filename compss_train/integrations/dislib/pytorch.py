"""The classes of ``dislib.pytorch``."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import nn

from compss_train.integrations.dislib.encapsulated import Encapsulated
from compss_train.model import parameters as params
from compss_train.model.losses import BatchFunction

LossFactory: TypeAlias = Callable[[], BatchFunction | str]
"""The class of a loss, or another callable that makes one."""


class EncapsulatedFunctionsDistributedPytorch(Encapsulated[nn.Module]):
    """Trains a torch module, with the interface of ``dislib.pytorch``.

    The eight fits and ``get_parameters`` return a copy of the module of ``build`` with the trained parameters.
    ``engine``, ``seed`` and ``threads`` are those of ``DistributedTrainer``. Attributes: ``num_workers``,
    ``model_parameters`` (the module that ``get_parameters`` returns), ``compss_object`` (one ``PytorchDistributed``
    for each worker), ``num_gpu``, ``num_gpus_per_worker``, and ``trainer``, the ``DistributedTrainer``.
    """

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

        A loss that is made already, a module, is taken as it is.

        ``num_gpu`` is the number of GPUs to use, on all nodes together. Without GPUs (no CUDA, or
        ``ComputingUnitsGPUs=0``) workers train on the CPU, as with dislib. Samples are converted to float32, unless
        there is a ``transform``; this and other ``options`` are those of ``DistributedTrainer.build``.

        Raises the exceptions of ``DistributedTrainer.build``.
        """
        spec = {"optimizer": optimizer, **optimizer_parameters}
        options = {"transform": torch.Tensor.float, **options}
        self._build(net, spec, _made(loss), num_gpu=num_gpu, num_nodes=num_nodes, **options)
        self.compss_object = [PytorchDistributed() for _ in range(self.num_workers)]
        for each in self.compss_object:
            each.build(net, loss, optimizer, optimizer_parameters)
        self.model_parameters = net

    def _module(self, parameters: nn.Module) -> nn.Module:
        if not isinstance(parameters, nn.Module):
            raise TypeError(f"model_parameters is a {type(parameters).__name__}; give a module like that of build")
        return parameters

    def _result(self, net: nn.Module) -> nn.Module:
        return net


class PytorchDistributed:
    """What one worker trains with, and dislib's two steps of training for scripts that call them themselves.

    They run in the calling process; fits train in tasks.
    """

    def build(
        self,
        net: nn.Module,
        loss: LossFactory | str,
        optimizer: Callable[..., torch.optim.Optimizer],
        optimizer_parameters: Mapping[str, Any],
    ) -> None:
        """Set ``model``, ``loss``, ``optimizer`` and ``optimizer_parameters``."""
        self.model, self.loss = net, _made(loss)
        self.optimizer, self.optimizer_parameters = optimizer, optimizer_parameters

    def train_cnn_batch_GPU(
        self, model_parameters: nn.Module, x_train: Any, y_train: Any, num_batches: int, shuffle_block_data: bool
    ) -> nn.Module:
        """Return a copy of the module after training on the batches of one block."""
        alone = EncapsulatedFunctionsDistributedPytorch(1, engine="serial")
        alone.build(model_parameters, self.optimizer, lambda: self.loss, self.optimizer_parameters)
        return alone.fit_synchronous_with_GPU(
            x_train, y_train, num_batches, 1, shuffle_block_data=shuffle_block_data, progress=False
        )

    def aggregate_parameters_async(self, model_params: nn.Module, parameters_to_aggregate: nn.Module) -> nn.Module:
        """Set the first module to the mean of the two, and return it."""
        own, other = (params.from_module(each) for each in (model_params, parameters_to_aggregate))
        params.load_into(model_params, params.halve(own, other))
        return model_params


def _made(loss: LossFactory | str) -> BatchFunction | str:
    """Return the loss that a class, or another callable, makes; names and modules are returned as they are."""
    return loss if isinstance(loss, str | nn.Module) else loss()
