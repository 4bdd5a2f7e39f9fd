"""``Converter``: batches in the dtype of a network's parameters, if the network does not take them as they are."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from compss_train._utils.nested import leaves, map_leaves

_STAGES: tuple[tuple[str, ...], ...] = ((), ("floats",), ("floats", "integers"))
_CLASSES = (torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32, torch.uint64)
"""Dtypes of class indices that torch's losses do not take."""


class Converter:
    """Converts for one copy of a network; one whose parameters have several dtypes gets batches as they are."""

    def __init__(self, net: nn.Module) -> None:
        dtypes = {parameter.dtype for parameter in net.parameters() if parameter.is_floating_point()}
        self._dtype = dtypes.pop() if len(dtypes) == 1 else None
        self._stage = 0
        self.conversions: set[tuple[str, str]] = set()
        """The dtypes that were converted, each with the new one."""

    def call(self, function: Callable[[Any], Any], x: Any) -> Any:
        """Return the function's result for x, converted if it fails without: floats first, and then integers, too.

        Networks that take integers, as embeddings do, therefore get integers.
        """
        failures: dict[int, RuntimeError] = {}
        tried: list[list[str]] = []
        for stage in range(self._stage, len(_STAGES)):
            converted = self._converted(x, _STAGES[stage])
            if (dtypes := _dtypes(converted)) in tried:
                continue
            try:
                result = function(converted)
            except RuntimeError as error:
                tried.append(dtypes)
                failures[stage] = error
            else:
                self._stage = stage
                self._note(x, converted)
                return result
        try:
            raise failures.get(1, failures[self._stage])  # embeddings do not take integers as floats
        finally:
            failures.clear()  # an error that its own frame holds would keep the batches' readers alive

    def inputs(self, x: Any) -> Any:
        """Return x as ``targets`` does, and note the dtypes that were converted."""
        converted = self.targets(x)
        self._note(x, converted)
        return converted

    def targets(self, y: Any) -> Any:
        """Return y with floating-point numbers in the network's dtype, and class indices that losses take."""
        return self._converted(y, ("floats", "classes"))

    def _converted(self, values: Any, kinds: tuple[str, ...]) -> Any:
        return map_leaves(lambda part: self._part(part, kinds), values) if kinds else values

    def _part(self, part: Any, kinds: tuple[str, ...]) -> Any:
        if not isinstance(part, torch.Tensor) or part.is_complex():
            return part
        if "classes" in kinds and part.dtype in _CLASSES:
            return part.long()
        wanted = "floats" if part.is_floating_point() else "integers"
        return part if self._dtype is None or wanted not in kinds else part.to(self._dtype)

    def _note(self, before: Any, after: Any) -> None:
        if after is before:
            return
        for one, other in zip(_dtypes(before), _dtypes(after), strict=True):
            if one != other and other == str(self._dtype).removeprefix("torch."):
                self.conversions.add((one, other))


def _dtypes(values: Any) -> list[str]:
    parts = [part for part in leaves(values) if isinstance(part, torch.Tensor)]
    return [str(part.dtype).removeprefix("torch.") for part in parts]
