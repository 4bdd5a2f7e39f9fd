"""Keys of a section that are parameters of a function, read from its signature: names, defaults, annotations.

A value of a run file is checked against the annotation. Annotations of an unknown kind, such as protocols, accept
any value here: the library checks it later.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from inspect import Parameter, signature
from os import PathLike
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from compss_train.cli.run_files import Errors, unknown_name
from compss_train.cli.run_files.objects import resolve

REQUIRED = Parameter.empty
"""The default of a key that has none."""


class Key(NamedTuple):
    """What a key of a section or table accepts, as an annotation, and its default."""

    annotation: Any
    default: Any = REQUIRED


NONE = "none"
"""The text for ``None``, which TOML does not have."""

_TYPES: dict[Any, tuple[str, Any]] = {
    bool: ("true or false", bool),
    int: ("an integer", int),
    float: ("a number", int | float),
    str: ("a string", str),
    NoneType: (f'"{NONE}"', NoneType),
    PathLike: ("a string", str | PathLike),
    Callable: ('"import:module:name"', Callable),
    Mapping: ("a table", Mapping),
    dict: ("a table", Mapping),
    **dict.fromkeys((tuple, list, Sequence), ("an array", list | tuple)),
    **{kind: ("an array", kind) for kind in (Iterable, Collection)},
}
"""How a run file gives values of these types, and the types that they have then."""


def signature_options(function: Callable[..., Any], exclude: Collection[str] = ()) -> dict[str, Key]:
    """Return the parameters of a function or class, except variadic ones and those in ``exclude``."""
    callee: Any = function
    if isinstance(function, type):
        callee = callee.__init__
    hints = get_type_hints(callee)
    return {
        name: Key(hints.get(name, Any), parameter.default)
        for name, parameter in signature(callee).parameters.items()
        if name not in {"self", *exclude}
        and parameter.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    }


def parse_options(where: str, table: Mapping[str, Any], options: Mapping[str, Key]) -> dict[str, Any]:
    """Return the keyword arguments of a section.

    Raises ``RunFileError`` with all unknown keys, missing keys and invalid values.
    """
    errors = Errors()
    arguments = {}
    for key, value in table.items():
        if key in options:
            place = f"{where} {key}"
            arguments[key] = errors.attempt(place, _parse_value, place, value, options[key].annotation)
        else:
            errors.add(f"{where} {key}", unknown_name(key, options))
    for key, option in options.items():
        if option.default is REQUIRED and key not in table:
            errors.add(where, f"{key} is missing; give {describe(option.annotation)}")
    errors.check()
    return arguments


def _parse_value(where: str, value: Any, annotation: Any) -> Any:
    resolved = resolve(value)
    if isinstance(resolved, str) and resolved == NONE and annotation is not Any and matches(None, annotation):
        return None
    if isinstance(resolved, dict):
        for kind in (annotation, *get_args(annotation)):
            if isinstance(kind, type) and is_dataclass(kind):
                return kind(**parse_options(where, resolved, signature_options(kind)))
    if not matches(resolved, annotation):
        raise ValueError(f"{format_value(value)} is not accepted; give {describe(annotation)}")
    return resolved


def format_value(value: Any) -> str:
    """Return a value as it is written in a run file."""
    if value is None or isinstance(value, str):
        return f'"{NONE if value is None else value}"'
    return str(value).lower() if isinstance(value, bool) else repr(list(value) if value == () else value)


def matches(value: Any, annotation: Any) -> bool:
    """Return whether a value is accepted by an annotation."""
    kind = get_origin(annotation) or annotation
    if kind is Any:
        return True
    if kind in (Union, UnionType):
        return any(matches(value, member) for member in get_args(annotation))
    if kind is Literal:
        return any(type(value) is type(choice) and value == choice for choice in get_args(annotation))
    if kind in _TYPES:
        return isinstance(value, _TYPES[kind][1]) and (kind is bool or not isinstance(value, bool))
    return not isinstance(kind, type) or getattr(kind, "_is_protocol", False) or isinstance(value, kind)


def describe(annotation: Any) -> str:
    """Return what an annotation accepts, in terms of a run file."""
    kind = get_origin(annotation) or annotation
    if kind in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(describe, get_args(annotation))))
    if kind is Literal:
        return " or ".join(map(format_value, get_args(annotation)))
    if kind is Any:
        return "a value"
    if kind in _TYPES:
        return _TYPES[kind][0]
    if is_dataclass(kind):
        return "a table"
    return f'{{ import = "module:name" }} of class {getattr(kind, "__name__", kind)}'
