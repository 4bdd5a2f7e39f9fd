"""The interface of dislib's distributed training: programs for dislib change one import line.

The two classes have the names, arguments and results of ``dislib.pytorch`` and ``dislib.eddl`` (dislib 1.0), and
train with ``DistributedTrainer``. Results differ from dislib's, which loses samples, weights and optimizer states:
docs/from-dislib.md lists the differences.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from compss_train._utils.validation import warn_user
from compss_train.engines.compss.context import under_compss
from compss_train.engines.compss.resources import declared_nodes
from compss_train.trainer import DistributedTrainer
from compss_train.training.named_fits import NamedFits

GPU_UNITS = "ComputingUnitsGPUs"
"""Environment variable with the number of GPUs of dislib's tasks."""


class EncapsulatedFunctionsDistributedPytorch(NamedFits[nn.Module]):
    """Trains a torch module, with the interface of ``dislib.pytorch``.

    The eight fits and ``get_parameters`` return a copy of the module given to ``build`` with the trained
    parameters. ``num_workers`` is the number of model replicas; ``trainer`` is the ``DistributedTrainer``.
    """

    def __init__(self, num_workers: int = 10) -> None:
        self.num_workers = num_workers
        self.trainer = DistributedTrainer(num_workers)
        self.model_parameters: nn.Module | None = None

    def build(
        self,
        net: nn.Module,
        optimizer: Callable[..., torch.optim.Optimizer],
        loss: Callable[[], Callable[[torch.Tensor, torch.Tensor], torch.Tensor]],
        optimizer_parameters: Mapping[str, Any],
        num_gpu: int = 0,
        num_nodes: int = 0,
    ) -> None:
        """Set the module, the class of the optimizer with its keyword arguments, and the class of the loss.

        ``num_gpu`` is the number of GPUs of each of ``num_nodes`` nodes. Without GPUs (no CUDA, or
        ``ComputingUnitsGPUs=0``) workers train on the CPU, as with dislib. Samples are converted to float32.

        Raises the exceptions of ``DistributedTrainer.build``.
        """
        spec = {"optimizer": optimizer, **optimizer_parameters}
        gpus = _usable_gpus(num_gpu * max(1, num_nodes))
        self.trainer.build(net, spec, loss(), num_gpu=gpus, num_nodes=max(1, num_nodes), transform=_as_float)
        self.model_parameters = net

    def get_parameters(self) -> nn.Module | None:
        """Return the module with the current parameters, ``None`` before ``build``."""
        return self.model_parameters

    def fit(self, *args: Any, **kwargs: Any) -> nn.Module:
        """Train with ``DistributedTrainer.fit``, which all eight fits call, and return the module."""
        self.trainer.fit(*args, **kwargs)
        self.model_parameters = self.trainer.model()
        return self.model_parameters


class EncapsulatedFunctionsDistributedEddl(DistributedTrainer):
    """Trains a torch module, with the interface of ``dislib.eddl``. EDDL itself is not used.

    ``build(net, optimizer, loss, metric, num_gpu, num_nodes)`` takes the optimizer as a dict, and loss and metric
    by their names in EDDL. The fits and ``get_parameters`` return a dict of arrays by their names in the module.
    """

    def __init__(self, num_workers: int = 10) -> None:
        super().__init__(num_workers)

    def build(  # type: ignore[override]  # dislib has no other options
        self,
        net: nn.Module,
        optimizer: Mapping[str, Any],
        loss: str,
        metric: str,
        num_gpu: int = 0,
        num_nodes: int = 0,
    ) -> None:
        """Set the module, optimizer, loss and metric. Raises the exceptions of ``DistributedTrainer.build``."""
        gpus = _usable_gpus(num_gpu * max(1, num_nodes))
        super().build(
            net, dict(optimizer), loss, metric, num_gpu=gpus, num_nodes=max(1, num_nodes), transform=_as_float
        )


def _as_float(batch: torch.Tensor) -> torch.Tensor:
    return batch.float()


def _usable_gpus(num_gpu: int) -> int:
    if num_gpu == 0 or os.environ.get(GPU_UNITS) == "0":
        return 0
    if under_compss() and (nodes := declared_nodes()):  # the coordinator may have other GPUs than the nodes
        return min(num_gpu, sum(node.gpus for node in nodes))
    if not torch.cuda.is_available():
        hint = f"set {GPU_UNITS}=0 to train on the CPU without this warning"
        warn_user(f"num_gpu={num_gpu}, but torch has no CUDA here: training on the CPU; {hint}")
        return 0
    return num_gpu
