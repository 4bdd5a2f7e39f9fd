"""What a parameter server is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from compss_train._utils.closing import Closable
from compss_train.data.block import Block


class ParameterServerClosedError(RuntimeError):
    """The parameter server was closed; make another one."""


class ParameterServer(Closable):
    """A store of parameters by key.

    A key holds as many arrays as ``init`` gave it. One array is how a parameter is kept that lies on many devices:
    gradients may then be any number of arrays of its shape, one a device, which are added up, and a pull fills any
    number of arrays. Of several arrays (a layer's weight and bias, say) as many must be pushed and pulled.

    Arrays are numpy's or tensors, on any device. What is pushed is the caller's to change as soon as ``push``
    returns. A pull sees every push of the same key that was made before it by the same client; pushes of different
    clients never lose one another. Among different keys, calls of a higher priority are executed first.

    Source: the interface of ``ai.djl.training.ParameterServer``, behind which stands MXNet's KVStore.

    Raises ``ValueError`` for a key that is there already (``init``) or is not there, and for arrays of another
    shape, dtype or number; ``ParameterServerClosedError`` after ``close``.
    """

    @abstractmethod
    def init(self, parameter_id: str, value: Sequence[Block]) -> None:
        """Set what a new key holds; the arrays are copied."""

    @abstractmethod
    def push(self, parameter_id: str, grads: Sequence[Block], priority: int = 0) -> None:
        """Update a key by a step of the server's optimizer along these gradients; without one, by adding them."""

    @abstractmethod
    def pull(self, parameter_id: str, weights: Sequence[Block] | None = None, priority: int = 0) -> Sequence[Block]:
        """Copy what a key holds into the arrays given, on their devices, or into new ones; return them."""

    @abstractmethod
    def close(self) -> None:
        """Execute what has been pushed, and end; may be called again."""
