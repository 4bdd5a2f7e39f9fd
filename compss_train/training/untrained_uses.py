"""Warns of callbacks that use the network that was given to ``build`` as if the fit trained it."""

from collections.abc import Iterable

from torch import nn

from compss_train._utils.private_names import version_of
from compss_train._utils.validation import warn_user
from compss_train.model.network_uses import network_use
from compss_train.training.callback import Callback


class UntrainedUses:
    """The callbacks that use a network, which a fit copies and leaves as it is.

    One that loads parameters into the network has a use for it, and is not warned of.
    """

    def __init__(self, callbacks: Iterable[Callback], net: nn.Module) -> None:
        uses = {callback: network_use(callback, net) for callback in callbacks}
        self._uses = {callback: use for callback, use in uses.items() if use}
        """How each callback uses the network."""
        self._net = net
        self._version = self._changes()

    def warn_after(self, hook: str) -> None:
        """Warn, once, of each callback with this hook, unless the network has been changed."""
        callbacks = [
            callback
            for callback in self._uses
            if getattr(type(callback), hook) is not getattr(Callback, hook)
        ]
        for callback in callbacks:
            use = self._uses.pop(callback)
            if self._changes() == self._version:
                warn_user(
                    f"{type(callback).__name__} {use}, of which the fit trains copies, and which "
                    "is still as it was: use trainer.model(), a network with the trained parameters"
                )

    def _changes(self) -> int:
        """Return how often tensors of the network have been changed."""
        return sum(map(version_of, (*self._net.parameters(), *self._net.buffers())))
