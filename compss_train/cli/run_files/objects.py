"""Python objects that a run file names by their import path, and whether they may be imported.

``"import:module:name"`` is the object itself. A table ``{ import = "module:name", key = value }`` is the result of
calling it with these keywords, and ``{ partial = "module:name", key = value }`` is ``functools.partial`` of it, a
call for later. In both, ``arguments`` holds more arguments: an array of positional ones, or a table of keywords.
A file is read as text alone; ``check_trust`` names the modules before anything of them is imported.
"""

import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from compss_train._utils.validation import suggestion
from compss_train.cli.run_files import RunFile, RunFileError, format_exception

PREFIX = "import:"
CALL, PARTIAL, ARGUMENTS = "import", "partial", "arguments"

KNOWN = ("compss_train", "torch", "numpy")
"""Packages that a program that trains has imported already."""
ADMINISTRATOR = 0
"""The user id of the system's administrator, who can execute anything anyway."""


def resolve(value: Any) -> Any:
    """Return a value of a run file with all import paths and tables in it replaced by their objects.

    Raises ``ValueError`` for a name that cannot be imported or called, or does not accept the arguments.
    """
    if isinstance(value, str) and value.startswith(PREFIX):
        return load_object(value.removeprefix(PREFIX))
    if isinstance(value, list):
        return [resolve(item) for item in value]
    if not isinstance(value, dict):
        return value
    if CALL in value or PARTIAL in value:
        return call_object(value)
    return {key: resolve(item) for key, item in value.items()}


def load_object(name: object) -> Any:
    """Return the object called ``"module:name"``, where the name may have dots."""
    if not isinstance(name, str) or not all(name.partition(":")):
        raise ValueError(f'{name!r} names no object: write "module:name", for example "torch.nn:Linear"')
    module_name, _, path = name.partition(":")
    module = _import_module(module_name)
    try:
        return attrgetter(path)(module)
    except AttributeError as error:
        hint = suggestion(str(error.name), dir(error.obj))
        raise ValueError(f"{name!r}: {module_name} has no {error.name}{hint}") from None


def _import_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:  # user modules may raise any kind
        if not isinstance(error, ModuleNotFoundError):
            raise ValueError(f"importing {name} failed: {type(error).__name__}: {error}") from error
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ValueError(f"importing {name} failed: {error}") from error
        hint = "install it, or put its file next to the TOML file or its folder into PYTHONPATH"
        raise ValueError(f"module {error.name} was not found; {hint}") from error


def call_object(table: Mapping[str, Any]) -> Any:
    """Return the result of the call that a table describes, or for one with ``partial`` the call itself."""
    if CALL in table and PARTIAL in table:
        raise ValueError(f"give {CALL} (call it) or {PARTIAL} (call it later), not both")
    name = table.get(CALL, table.get(PARTIAL))
    function = load_object(name)
    if not callable(function):
        raise ValueError(f'{name!r} cannot be called; for the object itself write "{PREFIX}{name}"')
    keywords = {key: value for key, value in table.items() if key not in (CALL, PARTIAL, ARGUMENTS)}
    more = table.get(ARGUMENTS, {})
    if not isinstance(more, list | dict):
        raise ValueError(f"{ARGUMENTS} = {more!r}: give an array of values, or a table of keywords")
    if isinstance(more, dict):
        if duplicates := [key for key in keywords if key in more]:
            raise ValueError(f"{duplicates[0]} is given twice, also in {ARGUMENTS}")
        keywords |= more
    keywords = {key: resolve(value) for key, value in keywords.items()}
    call = functools.partial(function, *(resolve(more) if isinstance(more, list) else ()), **keywords)
    _check_arguments(name, function, call, complete=CALL in table)
    if PARTIAL in table:
        return call
    try:
        return call()
    except Exception as error:  # user functions may raise any kind
        raise ValueError(f"calling {name} failed: {format_exception(error)}") from error


def _check_arguments(
    name: object, function: Callable[..., Any], call: functools.partial[Any], *, complete: bool
) -> None:
    """Raise ``ValueError`` if the function does not accept the arguments, before anything is called."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C have no signature
        return
    kinds = {parameter.name: parameter.kind for parameter in signature.parameters.values()}
    if inspect.Parameter.VAR_KEYWORD not in kinds.values():
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        accepted = [key for key, kind in kinds.items() if kind in named]
        if unknown := [key for key in call.keywords if key not in accepted]:
            hint = suggestion(unknown[0], accepted) or f"; it takes {', '.join(accepted) or 'none'}"
            raise ValueError(f"{name} has no argument {unknown[0]}{hint}")
    try:
        bind = signature.bind if complete else signature.bind_partial
        bind(*call.args, **call.keywords)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from error


def check_trust(file: RunFile, *, trusted: bool) -> None:
    """Say on standard error which modules the run's file imports, unless it is trusted.

    Raises ``RunFileError`` if the file, its folder or the folder of its modules belongs to another user, who could
    execute anything with the rights of this one.
    """
    if trusted:
        return
    modules = sorted({name for name in _modules(file.table) if name.partition(".")[0] not in KNOWN})
    what = f"imports {', '.join(modules)}" if modules else "names functions to call"
    for path in (file.path, file.path.parent, file.home):
        if (owner := _other_owner(path)) is not None:
            raise RunFileError(
                f"{path} belongs to {owner}, and {file.path.name} {what} with your rights: read it first, and add "
                "--trust if it does nothing but what it should"
            )
    if modules:
        print(f"compss-train: {file.path} {what} (--trust to hide this)", file=sys.stderr)


def _modules(value: Any) -> Iterator[str]:
    """Iterate over the modules that a value of a run file names."""
    if isinstance(value, str) and value.startswith(PREFIX):
        yield value.removeprefix(PREFIX).partition(":")[0]
    elif isinstance(value, list):
        for item in value:
            yield from _modules(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            named = key in (CALL, PARTIAL) and isinstance(item, str)
            yield from _modules(f"{PREFIX}{item}" if named else item)


def _other_owner(path: Path) -> str | None:
    """Return the owner of a path if it is neither this user nor the administrator."""
    owner = path.stat().st_uid
    if owner in (os.getuid(), ADMINISTRATOR):
        return None
    try:
        return path.owner()
    except KeyError:
        return f"user {owner}"
