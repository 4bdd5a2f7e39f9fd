"""Options of a function as keys of a section: whatever its signature has, now or later."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any

from compss_train.cli.run_files import objects
from compss_train.cli.run_files.annotations import alternatives, annotation_of, described, fits
from compss_train.cli.run_files.problems import Problems, unknown

NONE = "none"
"""What stands for ``None``, which TOML does not have."""


@dataclass(frozen=True)
class Option:
    """One parameter of a function."""

    name: str
    annotation: Any
    default: Any
    """``inspect.Parameter.empty`` where there is none."""

    @property
    def required(self) -> bool:
        """Whether it has to be given."""
        return self.default is inspect.Parameter.empty


def options_of(function: Callable[..., Any], leave_out: Collection[str] = ()) -> dict[str, Option]:
    """Return the options that a function or class takes by name."""
    callee: Any = function
    if isinstance(function, type):
        callee = callee.__init__
    left_out = {"self", *leave_out}
    return {
        name: Option(name, annotation_of(callee, parameter), parameter.default)
        for name, parameter in inspect.signature(callee).parameters.items()
        if name not in left_out and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }


def read_options(
    where: str, table: Mapping[str, Any], options: Mapping[str, Option], problems: Problems
) -> dict[str, Any]:
    """Return the keyword arguments that a section gives; notes unknown keys, missing ones and wrong values."""
    given = {}
    for key, value in table.items():
        if key not in options:
            problems.add(f"{where} {key}", unknown(key, options))
            continue
        with problems.noting(f"{where} {key}"):
            given[key] = _value(f"{where} {key}", value, options[key].annotation, problems)
    for option in options.values():
        if option.required and option.name not in table:
            problems.add(where, f"{option.name} is missing; give {described(option.annotation)}")
    return given


def _value(where: str, value: Any, annotation: Any, problems: Problems) -> Any:
    parts = alternatives(annotation)
    resolved = objects.resolve(value)
    if (
        isinstance(resolved, str)
        and resolved == NONE
        and any(fits(None, part) for part in parts)
        and Any not in parts
    ):
        return None
    if isinstance(resolved, dict) and (kind := _table_class(parts)) is not None:
        return _made(where, kind, resolved, problems)
    if not fits(resolved, annotation):
        problems.add(where, f"{shown(value)} does not fit; give {described(annotation)}")
    return resolved


def _table_class(parts: Collection[Any]) -> type | None:
    """Return the class that a table describes, where an option takes one."""
    return next((part for part in parts if isinstance(part, type) and is_dataclass(part)), None)


def _made(where: str, kind: type, table: Mapping[str, Any], problems: Problems) -> Any:
    before = len(problems)
    arguments = read_options(where, table, options_of(kind), problems)
    return kind(**arguments) if len(problems) == before else None


def shown(value: Any) -> str:
    """Return a value as a run file has it."""
    if value is None:
        return f'"{NONE}"'
    if isinstance(value, str):
        return f'"{value}"'
    return str(value).lower() if isinstance(value, bool) else repr(list(value) if value == () else value)
