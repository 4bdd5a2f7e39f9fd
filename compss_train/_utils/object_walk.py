"""``ObjectWalk``: shows what an object of a user holds, as fast as pickle walks through it."""

import pickle
from contextlib import suppress
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

_WITHOUT_PARTS = (
    type,
    FunctionType,
    BuiltinFunctionType,
    CodeType,
    ModuleType,
    torch.Tensor,
    np.ndarray,
)
"""Types whose objects are not looked into, or by other means than pickle's."""


class _Nowhere:
    """A file that keeps nothing."""

    def write(self, data: Any) -> int:
        return len(data)


class ObjectWalk(pickle.Pickler):
    """Pickles objects to nowhere, to see what they hold.

    Of tensors and arrays nothing is copied; objects of this package are left out, and so is what
    cannot be pickled. Of functions their cells, defaults and attributes are seen.
    """

    def __init__(self) -> None:
        super().__init__(_Nowhere(), pickle.HIGHEST_PROTOCOL, buffer_callback=lambda _: None)
        self.functions: dict[int, FunctionType] = {}
        """The functions that were seen, by their ``id``."""
        self.is_over = False
        """Whether nothing else has to be seen."""

    def sees(self, obj: Any) -> bool:
        """See an object that is no plain number, text or container; return whether that is all.

        Then its parts are not seen.
        """
        raise NotImplementedError

    def look_into(self, value: Any) -> None:
        """See what an object holds, and the functions in it."""
        waiting = [value]
        looked_into = 0
        while waiting and not self.is_over:
            with suppress(Exception):
                self.dump(waiting.pop())
            functions = [*self.functions.values()]
            waiting += [part for function in functions[looked_into:] for part in _parts(function)]
            looked_into = len(functions)

    def reducer_override(self, obj: Any) -> Any:
        """See an object, and let pickle walk on unless that is all."""
        if obj is object:
            return NotImplemented
        is_all = self.sees(obj)
        if self.is_over:
            raise pickle.PicklingError("nothing else has to be seen")
        if isinstance(obj, FunctionType):
            self.functions[id(obj)] = obj
        if isinstance(obj, MethodType):
            return object, (obj.__func__, obj.__self__)
        is_ours = type(obj).__module__.startswith("compss_train.")
        if is_all or is_ours or isinstance(obj, _WITHOUT_PARTS):
            return object, ()
        return NotImplemented


def _parts(function: FunctionType) -> list[Any]:
    """Return what a function holds."""
    parts = [function.__defaults__, function.__kwdefaults__, vars(function)]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # of an empty cell
            parts.append(cell.cell_contents)
    return parts
