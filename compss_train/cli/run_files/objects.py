"""Python objects that a run file names by their import path.

``"import:module:name"`` is the object itself. A table ``{ import = "module:name", key = value }`` is the result of
calling it with these keywords, and ``{ partial = "module:name", key = value }`` is ``functools.partial`` of it, a
call for later. In both, ``arguments`` holds more arguments: an array of positional ones, or a table of keywords.
"""

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from compss_train._utils.validation import suggestion
from compss_train.cli.run_files.errors import InvalidValueError, format_exception

PREFIX = "import:"
CALL, PARTIAL, ARGUMENTS = "import", "partial", "arguments"


STORED_MODULES = {
    "compss_train.example": "compss_train.cli.run_files.example",
    "compss_train.runs.example": "compss_train.cli.run_files.example",
}
"""Where modules of this package are that run files name; the files outlive the package's layout."""


def resolve(value: Any) -> Any:
    """Return a value of a run file with all import paths and tables in it replaced by their objects.

    Raises ``InvalidValueError`` for a name that cannot be imported or called, or does not accept the arguments.
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
        raise InvalidValueError(f'{name!r} names no object: write "module:name", for example "torch.nn:Linear"')
    module_name, _, path = name.partition(":")
    found = _import_module(module_name)
    for attribute in path.split("."):
        if not hasattr(found, attribute):
            hint = suggestion(attribute, dir(found))
            raise InvalidValueError(f"{name!r}: {module_name} has no {attribute}{hint}")
        found = getattr(found, attribute)
    return found


def _import_module(name: str) -> Any:
    try:
        return importlib.import_module(STORED_MODULES.get(name, name))
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise InvalidValueError(f"importing {name} failed: {error}") from error
        hint = "install it, or put its file next to the TOML file or its folder into PYTHONPATH"
        raise InvalidValueError(f"module {error.name} was not found; {hint}") from error
    except Exception as error:  # user modules may raise any kind
        raise InvalidValueError(f"importing {name} failed: {type(error).__name__}: {error}") from error


def call_object(table: Mapping[str, Any]) -> Any:
    """Return the result of the call that a table describes, or for one with ``partial`` the call itself."""
    if CALL in table and PARTIAL in table:
        raise InvalidValueError(f"give {CALL} (call it) or {PARTIAL} (call it later), not both")
    name = table.get(CALL, table.get(PARTIAL))
    function = load_object(name)
    if not callable(function):
        raise InvalidValueError(f'{name!r} cannot be called; for the object itself write "{PREFIX}{name}"')
    positional, keywords = _arguments(table)
    call = functools.partial(function, *positional, **keywords)
    _check_arguments(name, function, call, complete=CALL in table)
    if PARTIAL in table:
        return call
    try:
        return call()
    except Exception as error:  # user functions may raise any kind
        raise InvalidValueError(f"calling {name} failed: {format_exception(error)}") from error


def _arguments(table: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional arguments and the keywords of a call."""
    keys = {key: value for key, value in table.items() if key not in (CALL, PARTIAL, ARGUMENTS)}
    more = table.get(ARGUMENTS, {})
    if not isinstance(more, list | dict):
        raise InvalidValueError(f"{ARGUMENTS} = {more!r}: give an array of values, or a table of keywords")
    if duplicates := [key for key in keys if key in more] if isinstance(more, dict) else []:
        raise InvalidValueError(f"{duplicates[0]} is given twice, also in {ARGUMENTS}")
    keywords = {key: resolve(value) for key, value in keys.items()}
    if isinstance(more, list):
        return resolve(more), keywords
    return [], {**keywords, **{key: resolve(value) for key, value in more.items()}}


def _check_arguments(
    name: object, function: Callable[..., Any], call: functools.partial[Any], *, complete: bool
) -> None:
    """Raise ``InvalidValueError`` if the function does not accept the arguments, before anything is called."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C have no signature
        return
    accepted = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    accepts_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    for keyword in () if accepts_any else call.keywords:
        if keyword not in accepted:
            hint = suggestion(keyword, accepted) or f"; it takes {', '.join(accepted) or 'none'}"
            raise InvalidValueError(f"{name} has no argument {keyword}{hint}")
    try:
        bind = signature.bind if complete else signature.bind_partial
        bind(*call.args, **call.keywords)
    except TypeError as error:
        raise InvalidValueError(f"{name}: {error}") from error
