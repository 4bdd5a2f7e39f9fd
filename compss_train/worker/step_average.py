"""``StepAverage``: the average of a network's parameters over steps, not over merges."""

import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from compss_train._utils.private_names import state_tensors
from compss_train.model.devices import copy_into
from compss_train.model.parameters import Parameters, to_arrays


class StepAverage:
    """The average of a network's parameters after each step, as ``torch.optim.swa_utils`` has it.

    It continues ``averaged``, or begins with a copy after the first step.
    """

    def __init__(self, net: nn.Module, decay: float, averaged: Parameters | None) -> None:
        self._parameters = {
            name: tensor.detach()
            for name, tensor in state_tensors(net).items()
            if isinstance(tensor, nn.Parameter)
            and (tensor.is_floating_point() or tensor.is_complex())
        }
        self._update = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        self._average: list[torch.Tensor] | None = None
        if averaged is not None:
            self.continue_from(averaged)

    def continue_from(self, averaged: Parameters) -> None:
        """Continue this average, by name."""
        self._average = []
        for name, parameter in self._parameters.items():
            average = torch.empty_like(parameter)
            copy_into(average, torch.from_numpy(np.array(averaged[name])))
            self._average.append(average)

    @torch.no_grad()
    def update(self) -> None:
        """Average the parameters after a step."""
        parameters = [*self._parameters.values()]
        if self._average is None:
            self._average = [parameter.clone() for parameter in parameters]
        else:
            self._update(self._average, parameters, 1)

    def arrays(self) -> Parameters:
        """Return the average by name, or nothing before the first step."""
        if self._average is None:
            return {}
        return to_arrays(dict(zip(self._parameters, self._average, strict=True)))
