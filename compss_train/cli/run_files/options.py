"""Keys of a section that are parameters of a function, read from its signature: names, defaults, annotations.

A value of a run file is checked against the annotation. Annotations of an unknown kind, such as protocols, accept
any value here: the library checks it later.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from os import PathLike
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from compss_train.cli.run_files.errors import ErrorCollector, unknown_name
from compss_train.cli.run_files.objects import resolve

NONE = "none"
"""The text for ``None``, which TOML does not have."""


@dataclass(frozen=True)
class Option:
    """A parameter of a function; ``default`` is ``inspect.Parameter.empty`` if it has none."""

    name: str
    annotation: Any
    default: Any

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is inspect.Parameter.empty


def signature_options(function: Callable[..., Any], exclude: Collection[str] = ()) -> dict[str, Option]:
    """Return the parameters of a function or class, except variadic ones and those in ``exclude``."""
    callee: Any = function
    if isinstance(function, type):
        callee = callee.__init__
    excluded = {"self", *exclude}
    return {
        name: Option(name, resolve_annotation(callee, parameter), parameter.default)
        for name, parameter in inspect.signature(callee).parameters.items()
        if name not in excluded and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }


def parse_options(
    where: str, table: Mapping[str, Any], options: Mapping[str, Option], errors: ErrorCollector
) -> dict[str, Any]:
    """Return the keyword arguments of a section; collects unknown keys, missing keys and invalid values."""
    arguments = {}
    for key, value in table.items():
        if key not in options:
            errors.add(f"{where} {key}", unknown_name(key, options))
            continue
        with errors.catch(f"{where} {key}"):
            arguments[key] = _parse_value(f"{where} {key}", value, options[key].annotation, errors)
    for option in options.values():
        if option.required and option.name not in table:
            errors.add(where, f"{option.name} is missing; give {describe_annotation(option.annotation)}")
    return arguments


def _parse_value(where: str, value: Any, annotation: Any, errors: ErrorCollector) -> Any:
    members = union_members(annotation)
    resolved = resolve(value)
    is_none = isinstance(resolved, str) and resolved == NONE
    if is_none and any(matches(None, member) for member in members) and Any not in members:
        return None
    if isinstance(resolved, dict) and (kind := _dataclass_of(members)) is not None:
        return _make_dataclass(where, kind, resolved, errors)
    if not matches(resolved, annotation):
        errors.add(where, f"{format_value(value)} is not accepted; give {describe_annotation(annotation)}")
    return resolved


def _dataclass_of(members: Collection[Any]) -> type | None:
    """Return the dataclass among the members of a union, which a table describes."""
    return next((member for member in members if isinstance(member, type) and is_dataclass(member)), None)


def _make_dataclass(where: str, kind: type, table: Mapping[str, Any], errors: ErrorCollector) -> Any:
    before = len(errors)
    arguments = parse_options(where, table, signature_options(kind), errors)
    return kind(**arguments) if len(errors) == before else None


def format_value(value: Any) -> str:
    """Return a value as it is written in a run file."""
    if value is None:
        return f'"{NONE}"'
    if isinstance(value, str):
        return f'"{value}"'
    return str(value).lower() if isinstance(value, bool) else repr(list(value) if value == () else value)


def resolve_annotation(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Return the evaluated annotation of a parameter, ``Any`` if it cannot be evaluated."""
    annotation = Any if parameter.annotation is parameter.empty else parameter.annotation
    scope = getattr(inspect.unwrap(function), "__globals__", {})
    for _ in range(2):  # an alias may be a string itself
        if isinstance(annotation, str):
            try:
                annotation = eval(annotation, scope)
            except Exception:  # names that are imported for type checkers only
                return Any
    return Any if isinstance(annotation, str) else annotation


def union_members(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union; any other annotation is its only member."""
    if get_origin(annotation) in (Union, UnionType):
        return tuple(part for member in get_args(annotation) for part in union_members(member))
    return (annotation,)


def matches(value: Any, annotation: Any) -> bool:
    """Return whether a value is accepted by an annotation."""
    return any(_matches_member(value, member) for member in union_members(annotation))


def _matches_member(value: Any, annotation: Any) -> bool:
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


_TYPE_NAMES = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    NoneType: f'"{NONE}"',
}


def describe_annotation(annotation: Any) -> str:
    """Return what an annotation accepts, in terms of a run file."""
    parts = [text for member in union_members(annotation) for text in _describe_member(member)]
    return " or ".join(dict.fromkeys(parts))


def _describe_member(annotation: Any) -> list[str]:
    kind = get_origin(annotation) or annotation
    if kind is Literal:
        return [
            f'"{choice}"' if isinstance(choice, str) else str(choice).lower() for choice in get_args(annotation)
        ]
    if kind is Any:
        return ["a value"]
    if kind in _TYPE_NAMES or kind is None:
        return [_TYPE_NAMES[NoneType if kind is None else kind]]
    if kind is Callable:
        return ['"import:module:name"']
    if kind is PathLike:
        return ["a string"]
    if kind in (tuple, list, Sequence, Iterable, Collection):
        return ["an array"]
    if isinstance(kind, type) and (issubclass(kind, Mapping) or hasattr(kind, "__dataclass_fields__")):
        return ["a table"]
    name = getattr(kind, "__name__", str(kind))
    return [f'{{ import = "module:name" }} of class {name}']
