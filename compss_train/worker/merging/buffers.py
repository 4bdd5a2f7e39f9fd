"""How buffers merge that are no statistics: ``BufferRules``, from ``Merge(buffers=...)``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from compss_train.model.net_optimizers import matches
from compss_train.model.parameters import Parameters, has_same_bits
from compss_train.model.training_spec import TensorNames
from compss_train.worker.merging.trained import FIRSTS

BufferRule = Literal["mean", "max", "first", "worker"]


@dataclass(frozen=True)
class BufferRules:
    """The names of buffers that do not merge as the rule of the merge says."""

    maximum: frozenset[str] = frozenset()
    """Those of which a merge takes the maximum, element by element."""
    first: frozenset[str] = frozenset()
    """Those of which a merge takes the value of its first worker."""
    worker: frozenset[str] = frozenset()
    """Those of which each worker keeps its own; the global parameters have worker 0's."""

    @classmethod
    def of(
        cls,
        patterns: Mapping[str, BufferRule] | None,
        names: TensorNames,
        parameters: Mapping[str, NDArray[Any]],
    ) -> BufferRules:
        """Return the rules for the buffers of a network.

        Raises ``ValueError`` for a pattern that matches no buffer, and for means of integers.
        """
        rules: dict[str, BufferRule] = {}
        for pattern, rule in (patterns or {}).items():
            matching = [name for name in parameters if matches(name, pattern)]
            buffers = [name for name in matching if name in names.buffers]
            if not buffers:
                raise ValueError(_without_buffer(pattern, matching, names))
            rules |= dict.fromkeys(buffers, rule)
        for alias, name in names.aliases.items():
            if alias in rules or name in rules:  # one buffer under two names
                rules[alias] = rules[name] = rules.get(name) or rules[alias]
        for name, rule in rules.items():
            if rule == "mean" and parameters[name].dtype.kind not in "fc":
                raise ValueError(
                    f"buffers= has 'mean' for {name!r}, which holds {parameters[name].dtype}: "
                    "give 'max', 'first' or 'worker'"
                )

        def having(wanted: BufferRule) -> frozenset[str]:
            return frozenset(name for name, rule in rules.items() if rule == wanted)

        return cls(maximum=having("max"), first=having("first"), worker=having("worker"))

    def __bool__(self) -> bool:
        return bool(self.maximum or self.first or self.worker)

    @property
    def names(self) -> frozenset[str]:
        """All names."""
        return self.maximum | self.first | self.worker

    def split(
        self, parameters: Parameters, worker: int
    ) -> tuple[Parameters, Parameters | None, Parameters | None]:
        """Return what a worker brings to the rule of a merge, and to maxima and firsts."""
        if not self:
            return parameters, None, None
        names = self.names
        taken = self.first | self.worker if worker == 0 else self.first
        by_rule = {name: array for name, array in parameters.items() if name not in names}
        maxima = {name: parameters[name] for name in parameters if name in self.maximum}
        firsts = {name: parameters[name] for name in parameters if name in taken}
        return by_rule, maxima or None, firsts or None


NO_BUFFER_RULES = BufferRules()
"""All buffers merge as the rule of the merge says."""


def _without_buffer(pattern: str, matching: Sequence[str], names: TensorNames) -> str:
    """Return what is wrong with a pattern that matches no buffer."""
    buffers = sorted(names.buffers)
    what = f"the parameter {matching[0]!r}, which is no buffer" if matching else "no buffer"
    advice = "the network has none"
    if buffers:
        advice = f"give a prefix of dotted names, or a pattern, of {', '.join(buffers[:5])}"
    return (
        f"buffers= has {pattern!r}, which matches {what}: {advice} (buffers outside the "
        "state_dict are each worker's own)"
    )


def combined_buffer(field: str, arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return one array of the workers', in the order of their numbers, of a field of ``Trained``.

    That is the first, or the maximum.
    """
    if field == FIRSTS or len(arrays) == 1:
        return arrays[0]
    return np.asarray(np.maximum.reduce(list(arrays)))


def unchanged_names(names: frozenset[str], before: Parameters, after: Parameters) -> Iterator[str]:
    """Iterate over the names of floating-point arrays that have the same bits as before."""
    for name in names:
        if after[name].dtype.kind in "fc" and has_same_bits(before[name], after[name]):
            yield name
