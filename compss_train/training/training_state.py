"""``MergeState``: what merges keep beside the parameters; ``TrainingState``: that and the workers' states.

In a fit the states of the workers of each group are one value of the engine: what the group's last task returned.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any, TypeAlias

from compss_train.engines import Engine, Ref
from compss_train.worker import GroupState, WorkerState


@dataclass(frozen=True, eq=False, kw_only=True)
class MergeState:
    """What merges keep beside the parameters: values, or references to them during a fit."""

    moments: Any = None
    """The mean of the workers' optimizer states, as named arrays, with ``optimizer_state="average"``."""
    outer: Any = None
    """The state of the outer optimizer."""
    averaged: Any = None
    """The average of the parameters of the last merges, with ``Merge(averaging=...)``."""

    def refs(self) -> Iterator[Ref]:
        """Iterate over the references."""
        return (value for value in vars(self).values() if isinstance(value, Ref))

    def published(self, engine: Engine) -> "MergeState":
        """Return references to the values."""
        values = {name: value for name, value in vars(self).items() if value is not None}
        return MergeState(**{name: v if isinstance(v, Ref) else engine.publish(v) for name, v in values.items()})

    def fetched(self, engine: Engine) -> "MergeState":
        """Return the values, waiting for the tasks that compute them."""
        names = [each.name for each in fields(self) if isinstance(getattr(self, each.name), Ref)]
        return replace(self, **dict(zip(names, engine.fetch(list(self.refs())), strict=True)))

    def free(self, engine: Engine, kept: "MergeState") -> None:
        """Free the references that ``kept`` does not have."""
        others = {id(ref) for ref in kept.refs()}
        engine.delete([ref for ref in self.refs() if id(ref) not in others])


NOTHING_KEPT = MergeState()


@dataclass(frozen=True, eq=False)
class TrainingState:
    """What a fit leaves to the next one, and to a checkpoint, beside the parameters."""

    workers: tuple[WorkerState, ...] = ()
    """The state of each worker; missing ones start anew."""
    merge: MergeState = NOTHING_KEPT


States: TypeAlias = Sequence[GroupState | Ref]
"""The states of each group."""


def state_refs(states: States) -> list[Ref]:
    """Return the references to states."""
    return [each for each in states if isinstance(each, Ref)]


def fetch_states(engine: Engine, states: States) -> list[WorkerState]:
    """Return the state of each worker, waiting for the tasks that compute them."""
    fetched = iter(engine.fetch(state_refs(states)))
    return [*chain.from_iterable(next(fetched) if isinstance(each, Ref) else each for each in states)]
