"""The states of the workers of each group, as values of an engine: what the group's last task has returned."""

from collections.abc import Sequence
from itertools import chain
from typing import TypeAlias

from compss_train.engines import Engine, Ref
from compss_train.worker import GroupState, WorkerState

States: TypeAlias = Sequence[GroupState | Ref]
"""The states of each group."""


def state_refs(states: States) -> list[Ref]:
    """Return the references to states."""
    return [each for each in states if isinstance(each, Ref)]


def fetch_states(engine: Engine, states: States) -> list[WorkerState]:
    """Return the state of each worker, waiting for the tasks that compute them."""
    fetched = iter(engine.fetch(state_refs(states)))
    return [*chain.from_iterable(next(fetched) if isinstance(each, Ref) else each for each in states)]
