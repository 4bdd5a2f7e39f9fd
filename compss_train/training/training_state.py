"""What a fit passes on to the next fit and to checkpoints, besides the parameters.

During a fit, the states of the workers of a group are one value of the engine: what the group's
last task returned.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeAlias, TypeVar

from compss_train.engines import Engine, Ref
from compss_train.worker.state import GroupState, WorkerState

Kept = TypeVar("Kept")


@dataclass(frozen=True, eq=False, kw_only=True)
class MergeState(Generic[Kept]):
    """What merges keep besides the parameters: values, or references to them during a fit."""

    moments: Kept | None = None
    """The mean of the workers' optimizer states, with ``optimizer_state="average"``."""
    outer: Kept | None = None
    """The state of the outer optimizer."""
    averaged: Kept | None = None
    """The average of the parameters of the last merges, with ``Merge(averaging=...)``."""

    def refs(self) -> Iterator[Ref]:
        """Iterate over the references."""
        return (value for value in vars(self).values() if isinstance(value, Ref))

    def fetched(self, engine: Engine) -> "MergeState[Any]":
        """Return the values, waiting for the tasks that compute them."""
        names = [name for name, value in vars(self).items() if isinstance(value, Ref)]
        values = engine.fetch([*self.refs()])
        return replace(self, **dict(zip(names, values, strict=True)))


NOTHING_KEPT: MergeState[Any] = MergeState()


@dataclass(frozen=True, eq=False)
class TrainingState:
    """What a fit passes on to the next fit and to a checkpoint, besides the parameters."""

    workers: tuple[WorkerState, ...] = ()
    """The state of each worker; workers without a state start fresh."""
    merge: MergeState[Any] = NOTHING_KEPT


States: TypeAlias = Sequence[GroupState | Ref]
"""The states of each group."""


def state_refs(states: States) -> list[Ref]:
    """Return the references to states."""
    return [group_state for group_state in states if isinstance(group_state, Ref)]


def fetch_states(engine: Engine, states: States) -> list[WorkerState]:
    """Return the state of each worker, waiting for the tasks that compute them."""
    fetched = iter(engine.fetch(state_refs(states)))
    of_workers: list[WorkerState] = []
    for group_state in states:
        of_workers += next(fetched) if isinstance(group_state, Ref) else group_state
    return of_workers
