"""Values in tuples, lists and dicts: where x, y or outputs are several tensors, these are its leaves.

Anything else is a leaf itself, so that one tensor needs no special case.
"""

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any


def leaves(value: Any) -> list[Any]:
    """Return the leaves of a value; dicts are traversed in insertion order."""
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, tuple | list) else [value]


def rebuilt(template: Any, values: Iterable[Any]) -> Any:
    """Return a value with the tuples, lists and dicts of ``template``, and these leaves."""
    left = iter(values)  # of an iterator, the iterator itself: its items go to one leaf after another
    if isinstance(template, dict):
        return {name: rebuilt(item, left) for name, item in template.items()}
    if isinstance(template, tuple | list):
        items = [rebuilt(item, left) for item in template]
        named = hasattr(template, "_fields")
        return type(template)(*items) if named else tuple(items) if isinstance(template, tuple) else items
    return next(left)


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """Return a value with the tuples, lists and dicts of this one, and the results of the function as leaves."""
    if not isinstance(value, tuple | list | dict):
        return function(value)
    return rebuilt(value, map(function, leaves(value)))


def template_of(value: Any) -> Any:
    """Return the tuples, lists and dicts of a value, with ``None`` for its leaves."""
    return rebuilt(value, repeat(None))
