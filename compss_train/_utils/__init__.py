"""The version, and helpers of all packages: closable objects, validation, imports, files, locks."""

from abc import ABC, abstractmethod
from typing import Any, Self

__version__ = "0.1.0"


class Closable(ABC):
    """A context manager that closes itself at the end of its ``with`` block."""

    @abstractmethod
    def close(self) -> None:
        """Release all resources; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: Any, /
    ) -> None:
        self.close()


class PickledByFields:
    """A dataclass with slots that is pickled by its fields.

    The default takes several times as long.
    """

    __slots__: tuple[str, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple([getattr(self, name) for name in self.__slots__])
