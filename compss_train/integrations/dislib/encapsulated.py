"""What the two classes of dislib's distributed training have in common."""

import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from compss_train._utils.validation import check_count, warn_user
from compss_train.engines import Engine, engine_class
from compss_train.engines.base import this_machine
from compss_train.exceptions import NotBuiltError
from compss_train.model import parameters as params
from compss_train.trainer import DistributedTrainer
from compss_train.training.merge import Merge
from compss_train.training.named_fits import Fitted, NamedFits

GPU_UNITS = "ComputingUnitsGPUs"
"""Environment variable with the number of GPUs of dislib's tasks."""


class Encapsulated(NamedFits[Fitted]):
    """What the two classes have in common.

    A fit starts from ``model_parameters``, which a script may replace or change, and replaces it by the result.
    """

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
        self.compss_object: Sequence[Any] | None = None
        self.num_gpu = self.num_gpus_per_worker = 0

    def _build(self, *args: Any, num_gpu: int, num_nodes: int, **options: Any) -> None:
        check_count("num_gpu", num_gpu, least=0)
        check_count("num_nodes", num_nodes, least=0)
        options |= {"num_gpu": self._usable_gpus(num_gpu), "num_nodes": num_nodes}
        self.trainer.build(*args, **options)
        self.num_gpu, self.num_gpus_per_worker = num_gpu, num_nodes * num_gpu // self.num_workers

    def _usable_gpus(self, num_gpu: int) -> int:
        """Return how many of the GPUs that a script asks for there are; dislib's scripts run without any, too."""
        available = sum(node.gpus for node in self._nodes or [this_machine()])
        if num_gpu == 0 or os.environ.get(GPU_UNITS) == "0":
            return 0
        if not available:
            hint = f"set {GPU_UNITS}=0 to train on the CPU without this warning"
            warn_user(f"num_gpu={num_gpu}, but there are no GPUs for torch: training on the CPU; {hint}")
        return min(num_gpu, available)

    def get_parameters(self) -> Fitted | None:
        """Return ``model_parameters``: those of the last fit, at first those of ``build``, before it ``None``."""
        return self.model_parameters

    def fit(self, *args: Any, **kwargs: Any) -> Fitted:
        """Train with ``DistributedTrainer.fit``, which all eight fits call, and return the new parameters.

        Where nothing else is given, each block begins with a new optimizer, as with dislib.

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
