"""Whether a value of a run file fits an annotation, and how to say what does.

Anything fits an annotation of a kind that is not known here, such as a protocol: the library checks it, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from os import PathLike
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

_NAMES = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a text",
    NoneType: '"none"',
}


def annotation_of(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Return what a parameter's annotation evaluates to, ``Any`` where it cannot be told."""
    annotation = Any if parameter.annotation is parameter.empty else parameter.annotation
    scope = getattr(inspect.unwrap(function), "__globals__", {})
    for _ in range(2):  # an alias may be a text itself
        if isinstance(annotation, str):
            try:
                annotation = eval(annotation, scope)
            except Exception:  # names that only type checkers see
                return Any
    return Any if isinstance(annotation, str) else annotation


def alternatives(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, and any other annotation alone."""
    if get_origin(annotation) in (Union, UnionType):
        return tuple(part for member in get_args(annotation) for part in alternatives(member))
    return (annotation,)


def fits(value: Any, annotation: Any) -> bool:
    """Return whether a value may be given where this is the annotation."""
    return any(_fits_one(value, part) for part in alternatives(annotation))


def _fits_one(value: Any, annotation: Any) -> bool:
    kind = get_origin(annotation) or annotation
    if kind is Any:
        return True
    if kind is None or kind is NoneType:
        return value is None
    if kind is Literal:
        return any(type(value) is type(choice) and value == choice for choice in get_args(annotation))
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind is PathLike:
        return isinstance(value, str | PathLike)
    if kind is Callable:
        return callable(value)
    if kind in (tuple, list, Sequence):
        return isinstance(value, list | tuple)
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return isinstance(value, Mapping)
    return not isinstance(kind, type) or getattr(kind, "_is_protocol", False) or isinstance(value, kind)


def described(annotation: Any) -> str:
    """Return what fits an annotation, in a run file's terms."""
    parts = [text for part in alternatives(annotation) for text in _described_one(part)]
    return " or ".join(dict.fromkeys(parts))


def _described_one(annotation: Any) -> list[str]:
    kind = get_origin(annotation) or annotation
    if kind is Literal:
        return [
            f'"{choice}"' if isinstance(choice, str) else str(choice).lower() for choice in get_args(annotation)
        ]
    if kind is Any:
        return ["a value"]
    if kind in _NAMES or kind is None:
        return [_NAMES[NoneType if kind is None else kind]]
    if kind is Callable:
        return ['"import:module:name"']
    if kind is PathLike:
        return ["a text"]
    if kind in (tuple, list, Sequence, Iterable, Collection):
        return ["an array"]
    if isinstance(kind, type) and (issubclass(kind, Mapping) or hasattr(kind, "__dataclass_fields__")):
        return ["a table"]
    name = getattr(kind, "__name__", str(kind))
    return [f'{{ import = "module:name" }} of class {name}']
