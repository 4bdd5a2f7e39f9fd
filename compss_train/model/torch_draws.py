"""``TorchDraws``: the random draws that torch makes in one thread, from generators of their own.

torch has one generator for a process, so that draws of two threads would mix in the order of time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class CannotRedirectError(RuntimeError):
    """A draw for which no generator can be given."""


class TorchDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within the block, draws of this thread come from generators with a seed of their own.

    They give what the process's generators would give after ``torch.manual_seed(seed)``. Draws from generators that
    the caller passes stay as they are. Other threads are not affected. Raises ``CannotRedirectError`` before the
    draws of some fused operations, to which no generator can be given.

    Parameters
    ----------
    seed:
        Returns the seed; called at the first draw.
    redirect:
        ``False`` leaves all draws where they are, with the process's generators seeded so, and looks at them only.
    """

    def __init__(self, seed: Callable[[], int], *, redirect: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.can_be_redirected = True
        """Whether all draws so far could be: not those of fused operations, nor those after another seed."""
        self._seed = seed
        self._redirect = redirect
        self._generators: dict[torch.device, torch.Generator] = {}

    def restart(self, seed: int) -> None:
        """Let the draws that follow begin with another seed."""
        self._seed = lambda: seed
        self._generators = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call an operation, with a generator if it draws."""
        given = kwargs or {}
        if not _draws(func):
            return func(*args, **given)
        found = _with_generator(func)
        if not self._redirect:
            self.can_be_redirected &= found is not None and torch.initial_seed() == self._seed()
            return func(*args, **given)
        if found is None:
            raise CannotRedirectError(f"no generator can be given to {func}")
        overload, index = found
        if (given.get("generator") if len(args) <= index else args[index]) is not None:
            return func(*args, **given)
        return overload(*args[:index], *args[index + 1 :], **{**given, "generator": self._generator(args, given)})

    def _generator(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Generator:
        device = _device_of(args, kwargs)
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed())
        return self._generators[device]


def _device_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device:
    """Return the device of an operation's result, with its number."""
    tensor = next((each for each in args if isinstance(each, torch.Tensor)), None)
    device = torch.device(kwargs.get("device") or ("cpu" if tensor is None else tensor.device))
    if device == torch.device("cuda"):
        return torch.device("cuda", torch.cuda.current_device())
    return device


@functools.cache
def _draws(func: Any) -> bool:
    takes_generator = any(each.name == "generator" for each in func._schema.arguments)
    return takes_generator or torch.Tag.nondeterministic_seeded in func.tags


@functools.cache
def _with_generator(func: Any) -> tuple[Any, int] | None:
    """Return the overload of an operation that takes a generator, and where; ``None`` if there is none."""
    packet, wanted = func.overloadpacket, _arguments(func)
    for overload in (func, *(getattr(packet, name) for name in packet.overloads())):
        names = [each.name for each in overload._schema.arguments]
        if "generator" in names and _arguments(overload) == wanted:
            return overload, names.index("generator")
    return None


def _arguments(func: Any) -> list[tuple[str, str]]:
    return [(each.name, str(each.type)) for each in func._schema.arguments if each.name != "generator"]
