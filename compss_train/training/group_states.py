"""The states of the workers of each group, as values of an engine; and groups that are joined to larger ones.

A group's states are one value, which its last task has returned. Where groups are joined, the first task of the
union takes the value of each: nothing is moved or computed for it.
"""

from collections.abc import Sequence
from itertools import chain
from typing import TypeAlias

from compss_train.engines import Engine, Ref
from compss_train.worker import GroupState, WorkerState

GroupStates: TypeAlias = GroupState | Ref | list[GroupState | Ref]
"""The states of a group's workers; a list of those of several groups, if they were joined since they trained."""

States: TypeAlias = Sequence[GroupStates]
"""The states of each group."""


def parts(states: GroupStates) -> Sequence[GroupState | Ref]:
    """Return the values that hold the states of a group."""
    return states if isinstance(states, list) else [states]


def joined_states(groups: Sequence[range], states: States, unions: Sequence[range]) -> list[GroupStates]:
    """Return the states of unions of groups."""
    remaining = zip(groups, states, strict=True)
    joined: list[GroupStates] = []
    for union in unions:
        values: list[GroupState | Ref] = []
        for group, own in remaining:
            values += parts(own)
            if group.stop == union.stop:
                break
        joined.append(values[0] if len(values) == 1 else values)
    return joined


def state_refs(states: States) -> list[Ref]:
    """Return the references to states."""
    return [value for each in states for value in parts(each) if isinstance(value, Ref)]


def fetch_states(engine: Engine, states: States) -> list[WorkerState]:
    """Return the state of each worker, waiting for the tasks that compute them."""
    fetched = iter(engine.fetch(state_refs(states)))
    values = chain.from_iterable(map(parts, states))
    return [*chain.from_iterable(next(fetched) if isinstance(value, Ref) else value for value in values)]
