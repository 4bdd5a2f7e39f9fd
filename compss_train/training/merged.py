"""``Merged``: the global parameters after a merge, and what merges keep, in parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from compss_train.engines import Engine, Ref
from compss_train.model.parameters import Parameters
from compss_train.model.parts import Cut, joined, joined_moments
from compss_train.training.training_state import MergeState
from compss_train.worker.merging.outer_step import joined_outer, split_outer

Parts = Sequence[Ref]
"""References to the parts of a value."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Merged:
    """References to the parts of the global parameters, and of what merges keep besides them."""

    cut: Cut
    """Which elements belong to each part."""
    parameters: Parts
    moments: Parts | None = None
    """The merged states of the workers' optimizers, with ``optimizer_state="average"``."""
    outer: Parts | None = None
    """The state of the outer optimizer."""
    averaged: Parts | None = None
    """The average of the parameters of the last merges, with ``Merge(averaging=...)``."""

    @classmethod
    def published(
        cls, engine: Engine, cut: Cut, parameters: Parameters, kept: MergeState
    ) -> Merged:
        """Publish parameters, and what earlier merges kept, in parts."""

        def published(parts: Sequence[Any]) -> Parts:
            return [engine.publish(part) for part in parts]

        moments, outer, averaged = kept.moments, kept.outer, kept.averaged
        return cls(
            cut=cut,
            parameters=published(cut.parameters(parameters)),
            moments=None if moments is None else published(cut.split_moments(moments)),
            outer=None if outer is None else published(split_outer(outer, cut.parts)),
            averaged=None if averaged is None else published(cut.parameters(averaged)),
        )

    @property
    def without_parameters(self) -> Merged:
        """What is kept besides the parameters."""
        return replace(self, parameters=())

    def with_parameters(self, engine: Engine, parameters: Parameters) -> Merged:
        """Publish other parameters, with what is kept besides them."""
        published = [engine.publish(part) for part in self.cut.parameters(parameters)]
        return replace(self, parameters=published)

    def part(self, name: str, number: int) -> Ref | None:
        """Return a reference to a part of the value of this name, if there is one."""
        parts: Parts | None = getattr(self, name)
        return None if parts is None else parts[number]

    def refs(self) -> Iterator[Ref]:
        """Iterate over all references."""
        for value in fields(self):
            if value.name != "cut":
                yield from getattr(self, value.name) or ()

    def fetch_parameters(self, engine: Engine) -> Parameters:
        """Return the global parameters, waiting for the tasks that compute them."""
        return joined(engine.fetch(self.parameters))

    def fetch_averaged(self, engine: Engine) -> Parameters | None:
        """Return the average of the parameters, if one is kept."""
        return None if self.averaged is None else joined(engine.fetch(self.averaged))

    def fetch_kept(self, engine: Engine) -> MergeState:
        """Return what merges keep besides the parameters, whole."""
        moments = None
        if self.moments is not None:
            moments = joined_moments(engine.fetch(self.moments), self.cut.shapes)
        outer = None
        if self.outer is not None:
            outer = joined_outer(engine.fetch(self.outer), self.cut.parts)
        return MergeState(moments=moments, outer=outer, averaged=self.fetch_averaged(engine))
