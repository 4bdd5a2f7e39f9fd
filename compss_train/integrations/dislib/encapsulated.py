"""``Encapsulated``: what the classes of ``dislib.pytorch`` and ``dislib.eddl`` have in common."""

import os
from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from compss_train._utils.validation import check_count, warn_user
from compss_train.data import BlockedTensor
from compss_train.engines import Engine, engine_class
from compss_train.exceptions import NotBuiltError
from compss_train.model import parameters as params
from compss_train.trainer import DistributedTrainer
from compss_train.training.merge import Merge
from compss_train.training.named_fits import Fitted, NamedFits

GPU_UNITS = "ComputingUnitsGPUs"
"""Environment variable with the number of GPUs of dislib's tasks."""


def in_one_block(num_batches: int, *, shuffle_block_data: bool) -> dict[str, Any]:
    """Return the arguments of a fit that trains on the batches of one block once."""
    return {
        "num_batches_per_worker": num_batches,
        "num_epochs": 1,
        "progress": False,
        "shuffle": None,
        "shuffle_block_data": shuffle_block_data,
    }


def as_grid(values: Any) -> Any:
    """Return lists of blocks, as ``collect()`` of dislib's tensors makes, as a blocked tensor."""
    if not isinstance(values, list):
        return values
    rows = [row if isinstance(row, list) else [row] for row in values]
    are_blocks = all(_is_block(value) for row in rows for value in row)
    return BlockedTensor(rows) if rows and are_blocks else values


def _is_block(value: Any) -> bool:
    return isinstance(value, torch.Tensor | np.ndarray) and value.ndim > 0


class Encapsulated(NamedFits[Fitted]):
    """What the classes of ``dislib.pytorch`` and ``dislib.eddl`` have in common.

    A fit starts from ``model_parameters``, which a script may replace or change, and replaces it by
    the result.
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

    def _build(self, *args: Any, num_gpu: int, num_nodes: int, **options: Any) -> None:
        """Build the trainer for those of the requested GPUs that exist.

        Scripts for dislib also run without any.
        """
        self.num_gpu = check_count("num_gpu", num_gpu, least=0)
        requested = num_gpu * max(1, check_count("num_nodes", num_nodes, least=0))
        usable = 0 if os.environ.get(GPU_UNITS) == "0" else requested
        available = sum(node.gpus for node in self._nodes or Engine.nodes())
        if usable and not available:
            warn_user(
                f"num_gpu={num_gpu}, but there are no GPUs for torch: training on the CPU; "
                f"set {GPU_UNITS}=0 to train on the CPU without this warning"
            )
        self.trainer.build(*args, **{**options, "num_gpu": min(usable, available)})

    def get_parameters(self) -> Fitted | None:
        """Return ``model_parameters``: from the last fit or ``build``, or ``None`` before both."""
        return self.model_parameters

    def fit(self, *args: Any, **kwargs: Any) -> Fitted:
        """Train with ``DistributedTrainer.fit``, and return the new parameters.

        All eight fits call it. By default each block starts with a new optimizer, as in dislib.

        After an exception ``model_parameters`` are those that ``DistributedTrainer.fit`` keeps
        then.
        """
        if self.model_parameters is None:
            raise NotBuiltError(
                "this object has no network yet; call build(net, optimizer, loss, ...) first"
            )
        merge = Merge.of(kwargs.get("merge", "synchronous"))
        if merge.optimizer_state is None and merge.preset is None and kwargs.get("buffer") is None:
            kwargs["merge"] = replace(merge, optimizer_state="reset_blocks")
        self.trainer.set_parameters(params.from_module(self._module(self.model_parameters)))
        try:
            self.trainer.fit(*map(as_grid, args), **kwargs)
        finally:
            trained = self._result(self.trainer.model())
            self.model_parameters = trained
        return trained

    @abstractmethod
    def _module(self, parameters: Fitted) -> nn.Module:
        """Return a module with these parameters."""

    @abstractmethod
    def _result(self, net: nn.Module) -> Fitted:
        """Return what fits return, of the trained module."""
