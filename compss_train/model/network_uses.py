"""How objects of a user use the network that was given to ``build``, of which workers train copies.

Functions, losses and steps hold each worker's copy (``copies.LinkedTemplate``). Data sets and
callbacks are not copied with the network: in workers they would use it as it was given.
"""

import pickle
from contextlib import suppress
from types import FunctionType, MethodType
from typing import Any

from torch import nn

from compss_train.model.copies import LEFT_TO_DEEPCOPY, state_of
from compss_train.model.task_globals import global_users, network_user


def network_use(value: Any, net: nn.Module) -> str:
    """Return how an object, or what it holds, uses a network, for a message; or nothing."""
    search = _Search(net)
    search.look_into(value)
    if search.found:
        return "holds the network that was given to build"
    user = network_user(global_users([*search.functions.values(), *search.kinds]), net)
    if user is None:
        return ""
    function, name = user
    return (
        f"uses the network that was given to build, by the global variable {name!r} in "
        f"{function.__qualname__}"
    )


class _Nowhere:
    """A file that keeps nothing."""

    def write(self, data: Any) -> int:
        return len(data)


class _Search(pickle.Pickler):
    """Pickles objects to nowhere, to see what they hold as fast as pickle walks through it.

    Of tensors and arrays nothing is copied; objects of this package are left out.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__(_Nowhere(), pickle.HIGHEST_PROTOCOL, buffer_callback=lambda _: None)
        self._parts = {id(part) for part in (*net.modules(), *net.parameters(), *net.buffers())}
        self.found = False
        """Whether a part of the network was seen."""
        self.functions: dict[int, FunctionType] = {}
        """The functions that were seen, by their ``id``."""
        self.kinds: dict[type, None] = {}
        """The classes of the objects that were seen."""

    def look_into(self, value: Any) -> None:
        """See what an object holds, and the functions in it, as far as it can be pickled."""
        waiting = [value]
        looked_into = 0
        while waiting and not self.found:
            with suppress(Exception):
                self.dump(waiting.pop())
            functions = [*self.functions.values()]
            waiting += map(state_of, functions[looked_into:])
            looked_into = len(functions)

    def reducer_override(self, obj: Any) -> Any:
        """See an object, and let pickle walk on unless it is a tensor, an array or a function."""
        if id(obj) in self._parts:
            self.found = True
            raise pickle.PicklingError("found")
        if obj is object:
            return NotImplemented
        if isinstance(obj, FunctionType):
            self.functions[id(obj)] = obj
        self.kinds[type(obj)] = None
        if isinstance(obj, MethodType):
            return object, (obj.__func__, obj.__self__)
        # A trainer knows the network that it was given.
        is_ours = type(obj).__module__.startswith("compss_train.")
        return (object, ()) if is_ours or isinstance(obj, LEFT_TO_DEEPCOPY) else NotImplemented
