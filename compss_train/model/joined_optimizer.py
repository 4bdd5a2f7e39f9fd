"""``JoinedOptimizer``: several optimizers as one."""

from collections.abc import Callable, Mapping
from typing import Any

import torch


class JoinedOptimizer(torch.optim.Optimizer):
    """Several optimizers as one, which has their parameter groups in turn and the state of all.

    Learning-rate schedules, checkpoints and averages of moments therefore treat them as one
    optimizer. ``step`` steps all of them; a training step updates them one by one.
    """

    def __init__(self, optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
        self.optimizers = dict(optimizers)
        groups = [group for optimizer in optimizers.values() for group in optimizer.param_groups]
        super().__init__(groups, {})
        for optimizer in optimizers.values():
            self.state.update(optimizer.state)
        self._share()

    def _share(self) -> None:
        """Share this object's parameter groups and state with the single optimizers."""
        groups = iter(self.param_groups)
        for optimizer in self.optimizers.values():
            optimizer.param_groups = [next(groups) for _ in optimizer.param_groups]
            optimizer.state = self.state

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Step all optimizers."""
        for optimizer in self.optimizers.values():
            optimizer.step(closure)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned."""
        super().load_state_dict(state_dict)
        self._share()
