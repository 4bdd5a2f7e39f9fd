"""``map_items``: one function over many items, in chunks that share a task, and what comes of them.

Each item has a state, which its last call returned. What a chunk's calls return is combined in its
task, so that few large values leave it. Nobody else knows of chunks: an item's state is a reference
of its own, whichever task made it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from compss_train.engines.base import Engine, Ref
from compss_train.engines.nodes import ONE_CPU, Resources


class ItemRef(Ref):
    """A reference to an item of a value that is a tuple, as of the states of a chunk.

    ``map_items`` passes it to tasks; elsewhere ``fetch_items`` and ``whole_values`` resolve it.
    """

    __slots__ = ("index", "whole")

    def __init__(self, whole: Ref, index: int) -> None:
        self.whole = whole
        self.index = index


def whole_values(values: Iterable[Any]) -> list[Ref]:
    """Return the references among the values, each once, with wholes in place of their items."""
    wholes = (value.whole if isinstance(value, ItemRef) else value for value in values)
    return list(dict.fromkeys(whole for whole in wholes if isinstance(whole, Ref)))


def fetch_items(engine: Engine, values: Sequence[Any]) -> list[Any]:
    """Return the values with those behind references, waiting for the tasks that compute them."""
    wholes = whole_values(values)
    fetched = dict(zip(wholes, engine.fetch(wholes), strict=True))

    def resolved(value: Any) -> Any:
        if isinstance(value, ItemRef):
            return fetched[value.whole][value.index]
        return fetched[value] if isinstance(value, Ref) else value

    return [resolved(value) for value in values]


Call: TypeAlias = Callable[[Any, Any, Sequence[Any]], tuple[Any, Any, Any]]
"""A function of an item's state, the item and values: returns a result, the new state, a report."""

Place: TypeAlias = tuple[int, int | None]
"""Where a task finds a state: the number of an argument, and of the item in it, if it has some."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Chunk:
    """Consecutive items, which one task deals with."""

    items: Sequence[Any]
    """Plain values."""
    states: Sequence[Any]
    """The state of each item: a reference, or a value."""
    values: list[Any] = field(default_factory=list)
    """What the task reads for its items, as references or values."""


@dataclass(frozen=True, eq=False)
class MappedChunk:
    """What comes of a chunk."""

    results: list[Ref]
    """The parts of the combined result."""
    states: list[Ref]
    """The new state of each item."""
    reports: Ref
    """The list of the items' reports."""


def map_items(
    engine: Engine,
    task: Callable[..., Call],
    shared: Sequence[Any],
    chunks: Iterable[Chunk],
    *,
    combine: Any,
    parts: int = 1,
    states_apart: bool = True,
    resources: Resources = ONE_CPU,
) -> list[MappedChunk]:
    """Submit a task for each chunk, and return what comes of each.

    A chunk is asked for once the task of the one before has been submitted. ``task(*shared)``
    returns the function that is called with each item; ``shared`` are references, values, or lists
    of them. ``combine`` is a function, or a reference to one, that gets the iterator of a chunk's
    results, each computed when it is asked for, and returns ``parts`` values. With ``states_apart``
    each state is a value of its own; otherwise those of a chunk are one value, which saves objects
    where states are small.
    """
    return [
        _submit(engine, task, shared, chunk, combine, parts, states_apart, resources)
        for chunk in chunks
    ]


def _submit(
    engine: Engine,
    task: Callable[..., Call],
    shared: Sequence[Any],
    chunk: Chunk,
    combine: Any,
    parts: int,
    states_apart: bool,
    resources: Resources,
) -> MappedChunk:
    arguments, places = _places_of(chunk.states)
    states_apart = states_apart or len(chunk.items) == 1
    number_of_states = len(chunk.items) if states_apart else 1
    refs = engine.submit(
        map_chunk,
        task,
        combine,
        parts,
        states_apart,
        tuple(chunk.items),
        places,
        arguments,
        chunk.values,
        *shared,
        returns=parts + 1 + number_of_states,
        resources=resources,
    )
    results = refs[:parts]
    reports = refs[parts]
    states = refs[parts + 1 :]
    if not states_apart:
        states = [ItemRef(states[0], index) for index in range(len(chunk.items))]
    return MappedChunk(results, states, reports)


def _places_of(states: Sequence[Any]) -> tuple[list[Any], tuple[Place, ...]]:
    """Return the arguments that hold the states, each once, and where each state is."""
    arguments: list[Any] = []
    numbers: dict[int, int] = {}
    places: list[Place] = []
    for state in states:
        whole = state.whole if isinstance(state, ItemRef) else state
        index = state.index if isinstance(state, ItemRef) else None
        if id(whole) not in numbers:
            numbers[id(whole)] = len(arguments)
            arguments.append(whole)
        places.append((numbers[id(whole)], index))
    return arguments, tuple(places)


def map_chunk(
    task: Callable[..., Call],
    combine: Callable[[Iterator[Any]], Sequence[Any]],
    parts: int,
    states_apart: bool,
    items: Sequence[Any],
    places: Sequence[Place],
    arguments: Sequence[Any],
    values: Sequence[Any],
    *shared: Any,
) -> tuple[Any, ...]:
    """Return the parts of the combined results, the reports, and the new states: a task."""
    call = task(*shared)
    states: list[Any] = []
    reports: list[Any] = []

    def results() -> Iterator[Any]:
        for item, (number, index) in zip(items, places, strict=True):
            before = arguments[number] if index is None else arguments[number][index]
            result, state, report = call(before, item, values)
            states.append(state)
            reports.append(report)
            yield result

    combined = combine(results())
    if len(combined) != parts or len(states) != len(items):
        raise ValueError(
            f"combining {len(items)} results gave {len(combined)} parts of {parts}, from "
            f"{len(states)} of the results"
        )
    return (*combined, reports, *(states if states_apart else [tuple(states)]))
