"""Warns of callbacks that use what was given to ``build`` as if the fit trained with it."""

from collections.abc import Sequence

import torch
from torch import nn

from compss_train._utils.private_names import version_of
from compss_train._utils.validation import warn_user
from compss_train.model.network_uses import network_use_in_calls, optimizer_use
from compss_train.training.callback import Callback


class UntrainedUses:
    """The callbacks that use a network, which a fit copies and leaves as it is.

    One that loads parameters into the network has a use for it, and is not warned of. Those that
    use one of the optimizers are warned of at once: nothing makes them those of workers.
    """

    def __init__(
        self,
        callbacks: Sequence[Callback],
        net: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
    ) -> None:
        self._uses: list[tuple[Callback, str]] = []
        """Callbacks that use the network, and how."""
        for callback in callbacks:
            of_optimizer = optimizer_use(callback, optimizers)
            if of_optimizer:
                warn_user(
                    f"{type(callback).__name__} {of_optimizer}, but each worker makes an optimizer "
                    "of its own: change rates with trainer.set_hyperparameters(lr=...), or give "
                    "build(schedule=); trainer.hyperparameters has the rates"
                )
                continue
            of_network = network_use_in_calls(callback, net)
            if of_network:
                self._uses.append((callback, of_network))
        self._net = net
        self._version = self._changes()

    def warn_after(self, hook: str) -> None:
        """Warn, once, of each callback with this hook, unless the network has been changed."""
        uses = self._uses
        self._uses = []
        for callback, use in uses:
            if getattr(type(callback), hook) is getattr(Callback, hook):
                self._uses.append((callback, use))
            elif self._changes() == self._version:
                warn_user(
                    f"{type(callback).__name__} {use}, of which the fit trains copies, and which "
                    "is still as it was: use trainer.model(), a network with the trained parameters"
                )

    def _changes(self) -> int:
        """Return how often tensors of the network have been changed."""
        return sum(map(version_of, (*self._net.parameters(), *self._net.buffers())))
