"""Values in tuples, lists and dicts: where x, y or outputs are several tensors, the leaves.

Anything else is a leaf itself, so that one tensor needs no special case; so is a tuple that moves
its tensors to devices by itself, as torch's ``PackedSequence`` does.
"""

from collections.abc import Callable, Iterable
from typing import Any

_SEQUENCES = (tuple, list)  # a tuple of types: isinstance takes several times as long with a union


def is_sequence(value: Any) -> bool:
    """Return whether a value is a tuple or list of values, and not one that moves by its ``to``."""
    return isinstance(value, _SEQUENCES) and not hasattr(value, "to")


def leaves(value: Any) -> list[Any]:
    """Return the leaves of a value; dicts are traversed in insertion order."""
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    if is_sequence(value):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def rebuilt(template: Any, values: Iterable[Any]) -> Any:
    """Return a value with the tuples, lists and dicts of ``template``, and these leaves.

    Of an iterator, later leaves stay for later calls.
    """
    remaining = iter(values)
    return map_leaves(lambda _: next(remaining), template)


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """Return the tuples, lists and dicts of a value, with results of the function as leaves."""
    if isinstance(value, dict):
        return {name: map_leaves(function, item) for name, item in value.items()}
    if is_sequence(value):
        items = [map_leaves(function, item) for item in value]
        if hasattr(value, "_fields"):  # a named tuple
            return type(value)(*items)
        return tuple(items) if isinstance(value, tuple) else items
    return function(value)


def places(value: Any, name: str) -> list[str]:
    """Return what messages call the leaves of a value called ``name``, such as ``x['user'][0]``."""
    if not isinstance(value, dict | tuple | list):
        return [name]
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return [place for key, item in items for place in places(item, f"{name}[{key!r}]")]


def template_of(value: Any) -> Any:
    """Return the tuples, lists and dicts of a value, with ``None`` for its leaves."""
    return map_leaves(lambda _: None, value)
