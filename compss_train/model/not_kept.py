"""``NotKept``: stands for an object that was made while a worker trained, and is not kept."""

from typing import Any, NoReturn


class NotKept:
    """Raises ``TypeError`` wherever a program uses it; one that only replaces it never notices.

    Copies of a network in tasks have it; ``trainer.model()`` has what was built.
    """

    __slots__ = ("_message", "kind")

    def __init__(self, path: str, kind: str) -> None:
        object.__setattr__(self, "kind", kind)
        object.__setattr__(
            self,
            "_message",
            f"{path} is of {kind}, which cannot be kept for the next round: keep numbers, text, "
            "tensors, arrays, and lists, dicts and sets of them, or make the object before the "
            "fit; what each batch makes anew may be of any kind",
        )

    def _fail(self, *args: Any) -> NoReturn:
        raise TypeError(object.__getattribute__(self, "_message"))

    @property  # type: ignore[misc]
    def __class__(self) -> NoReturn:  # type: ignore[override]
        """What ``isinstance`` asks for, of whatever is of no such type."""
        raise TypeError(object.__getattribute__(self, "_message"))

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # as Python looks for methods
            raise AttributeError(name)
        self._fail()

    __setattr__ = __delattr__ = _fail
    __call__ = __iter__ = __next__ = __len__ = __bool__ = __contains__ = _fail
    __getitem__ = __setitem__ = __delitem__ = __enter__ = __exit__ = _fail
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _fail
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _fail
    __neg__ = __matmul__ = __rmatmul__ = __pow__ = __int__ = __float__ = _fail
