"""Python objects that a run file names by their import path.

``"import:module:name"`` is the object itself. A table ``{ import = "module:name", key = value }`` is what calling
it with these keywords returns, and ``{ partial = "module:name", key = value }`` is ``functools.partial`` of it, the
same call still to be made. In both, ``arguments`` holds more: an array of positional ones, or a table of keywords.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from compss_train._utils.validation import suggestion
from compss_train.cli.run_files.problems import WrongValueError, describe

PREFIX = "import:"
CALLED, PREPARED, ARGUMENTS = "import", "partial", "arguments"


def resolve(value: Any) -> Any:
    """Return a value of a run file with all objects in it in the place of what names them.

    Raises ``WrongValueError`` for what cannot be imported, is no callable or does not take these arguments.
    """
    if isinstance(value, str) and value.startswith(PREFIX):
        return load(value.removeprefix(PREFIX))
    if isinstance(value, list):
        return [resolve(item) for item in value]
    if not isinstance(value, dict):
        return value
    if CALLED in value or PREPARED in value:
        return make(value)
    return {key: resolve(item) for key, item in value.items()}


def load(name: object) -> Any:
    """Return the object called ``"module:name"``, where the name may have dots."""
    if not isinstance(name, str) or not all(name.partition(":")):
        raise WrongValueError(f'{name!r} names no object: write "module:name", for example "torch.nn:Linear"')
    module_name, _, path = name.partition(":")
    found = _module(module_name)
    for attribute in path.split("."):
        if not hasattr(found, attribute):
            raise WrongValueError(f"{name!r}: {module_name} has no {attribute}{suggestion(attribute, dir(found))}")
        found = getattr(found, attribute)
    return found


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise WrongValueError(f"importing {name} failed: {error}") from error
        hint = "install it, or put its file next to the TOML file or its folder into PYTHONPATH"
        raise WrongValueError(f"there is no module {error.name}; {hint}") from error
    except Exception as error:  # whatever a module does when it is imported
        raise WrongValueError(f"importing {name} failed: {type(error).__name__}: {error}") from error


def make(table: Mapping[str, Any]) -> Any:
    """Return what a table with ``import`` or ``partial`` stands for."""
    if CALLED in table and PREPARED in table:
        raise WrongValueError(f"give {CALLED} (call it) or {PREPARED} (call it later), not both")
    name = table.get(CALLED, table.get(PREPARED))
    function = load(name)
    if not callable(function):
        raise WrongValueError(f'{name!r} cannot be called; for the object itself write "{PREFIX}{name}"')
    positional, keywords = _arguments(table)
    prepared = functools.partial(function, *positional, **keywords)
    _check_arguments(name, function, prepared, complete=CALLED in table)
    if PREPARED in table:
        return prepared
    try:
        return prepared()
    except Exception as error:  # the user's own code
        raise WrongValueError(f"calling {name} failed: {describe(error)}") from error


def _arguments(table: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    own = {key: value for key, value in table.items() if key not in (CALLED, PREPARED, ARGUMENTS)}
    given = table.get(ARGUMENTS, {})
    if not isinstance(given, list | dict):
        raise WrongValueError(f"{ARGUMENTS} = {given!r}: give an array of values, or a table of keywords")
    if twice := [key for key in own if key in given] if isinstance(given, dict) else []:
        raise WrongValueError(f"{twice[0]} is given twice, also in {ARGUMENTS}")
    keywords = {key: resolve(value) for key, value in own.items()}
    if isinstance(given, list):
        return resolve(given), keywords
    return [], {**keywords, **{key: resolve(value) for key, value in given.items()}}


def _check_arguments(
    name: object, function: Callable[..., Any], prepared: functools.partial[Any], *, complete: bool
) -> None:
    """Raise ``WrongValueError`` where the function does not take these arguments, before anything is called."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C tell nothing
        return
    accepted = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    for keyword in () if takes_any else prepared.keywords:
        if keyword not in accepted:
            hint = suggestion(keyword, accepted) or f"; it takes {', '.join(accepted) or 'none'}"
            raise WrongValueError(f"{name} has no argument {keyword}{hint}")
    try:
        bind = signature.bind if complete else signature.bind_partial
        bind(*prepared.args, **prepared.keywords)
    except TypeError as error:
        raise WrongValueError(f"{name}: {error}") from error
