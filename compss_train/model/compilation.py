"""``Compilation``: forward passes that ``torch.compile`` compiles where they are trained."""

import copy
import weakref
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Self

import torch
from torch import nn

from compss_train._utils.nested import leaves
from compss_train._utils.private_names import (
    allow_any_length,
    call_by,
    call_uncompiled,
    is_compiled,
)


class Compilation:
    """The arguments of ``torch.compile``, and what this process has compiled with them.

    Tasks train new copies of the network. What is compiled takes the module as an argument, so that
    it serves all of them, and modules keep their classes and the names of their parameters.
    """

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        self.options = dict(options or {})
        self._compiled: dict[str, Callable[..., Any]] = {}

    @classmethod
    def of(cls, value: bool | Mapping[str, Any]) -> Self | None:  # noqa: FBT001
        """Return ``build(compile=...)`` as an object.

        Raises ``TypeError`` and ``ValueError`` for other values.
        """
        if isinstance(value, bool):
            return cls() if value else None
        if not isinstance(value, Mapping):
            raise TypeError(
                f"compile={value!r}: give True, False, or a dict of arguments of torch.compile"
            )
        try:
            torch.compile(_call, **copy.deepcopy(dict(value)))
        except Exception as error:  # torch has a class of its own for nearly each of them
            raise ValueError(f"compile={dict(value)!r}: {error}") from error
        return cls(value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return this object: copies of a model share what has been compiled."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Compilation, (self.options,)

    def __repr__(self) -> str:
        return repr(self.options or True)

    def apply(self, net: nn.Module) -> None:
        """Run the network compiled, and its children where a training step calls them."""
        for name, module in [("", net), *net.named_children()]:
            if has_forward(module):
                call_by(module, _CompiledCall(self, name, module))

    def compiled(self, name: str) -> Callable[..., Any]:
        """Return the compiled call of the module with this name, which it takes as an argument."""
        if name not in self._compiled:
            # torch keeps what it compiles with the code of a function, and few variants of it.
            code = _call.__code__.replace(co_name=f"call_{len(self._compiled)}")
            function = FunctionType(code, globals())
            self._compiled[name] = torch.compile(function, **copy.deepcopy(self.options))
        return self._compiled[name]


def _call(*args: Any, **kwargs: Any) -> Any:
    return call_uncompiled(*args, **kwargs)


class _CompiledCall:
    """The call of a module, held by a weak reference."""

    def __init__(self, compilation: Compilation, name: str, module: nn.Module) -> None:
        self._compilation = compilation
        self._name = name
        self._module = weakref.ref(module)
        self._sizes_vary = "dynamic" not in compilation.options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._sizes_vary:
            # One compilation for all batch sizes: which of two a batch met would depend on the
            # batches before it.
            for tensor in leaves((args, kwargs)):
                if isinstance(tensor, torch.Tensor) and tensor.dim():
                    allow_any_length(tensor)
        return self._compilation.compiled(self._name)(self._module(), *args, **kwargs)


def has_forward(module: nn.Module) -> bool:
    """Return whether a module can be called; a dict of modules cannot."""
    return type(module).forward is not nn.Module.forward or "forward" in vars(module)


def check_not_compiled(net: nn.Module) -> None:
    """Raise ``ValueError`` for a network in which ``torch.compile`` has renamed parameters."""
    if any(map(is_compiled, net.modules())):
        raise ValueError(
            "net has been compiled by torch.compile, whose parameters are called _orig_mod.*; "
            "give the network itself and build(compile=True), so that workers compile it"
        )
