"""Python objects that a run file names by their import path, and their arguments.

``"import:module:name"`` is the object itself. A table ``{ import = "module:name", key = value }``
is the result of calling it with these keywords, and ``{ partial = "module:name", key = value }`` is
``functools.partial`` of it, a call for later. In both, ``arguments`` may be an array of positional
arguments. A file is read as text alone; ``trust`` says what it names before that is imported, and
``load_object`` is the only function that imports.

The keys of sections are parameters of functions of this package. Only their names are checked here:
the values are checked by the functions, which say what they accept.
"""

import functools
import importlib
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from types import ModuleType
from typing import Any

from compss_train._utils.validation import suggestion
from compss_train.buffers import BufferSpec
from compss_train.cli.run_files import TomlTable, format_exception, unknown_name
from compss_train.model import schedule, train_transform
from compss_train.model.gradients import Gradients
from compss_train.samplers import PartialShuffle
from compss_train.training.merge import Merge

PREFIX = "import:"
"""The beginning of a string that names an object."""
CALL = "import"
"""The key of what a table calls."""
PARTIAL = "partial"
"""The key of what a table calls later."""
ARGUMENTS = "arguments"
"""The key of positional arguments."""
NONE = "none"
"""The text for ``None``, which TOML does not have."""

TABLES: Mapping[str, Callable[..., Any]] = {
    "buffer": BufferSpec,
    "gradients": Gradients,
    "merge": Merge,
    "schedule": schedule.Schedule,
    "shuffle": PartialShuffle,
    "train_transform": train_transform.TrainTransform,
}
"""Keys whose tables hold the arguments of a class."""
NAMED = ("merge", "shuffle")
"""Those of them that also take the name of a kind."""


def resolve(value: Any) -> Any:
    """Return a value of a run file with objects in place of all that names them.

    Raises ``ValueError`` for a name that cannot be imported or called, or does not accept the
    arguments.
    """
    if is_object(value):
        is_name = isinstance(value, str)
        return load_object(value.removeprefix(PREFIX)) if is_name else call_object(value)
    if isinstance(value, list):
        return [resolve(item) for item in value]
    if isinstance(value, dict):
        return {key: resolve(item) for key, item in value.items()}
    return value


def is_object(value: Any) -> bool:
    """Return whether a value is a string that names an object, or a table of a call."""
    if isinstance(value, str):
        return value.startswith(PREFIX)
    return isinstance(value, dict) and (CALL in value or PARTIAL in value)


def load_object(name: object) -> Any:
    """Import and return the object called ``"module:name"``, where the name may have dots."""
    if not isinstance(name, str) or not all(name.partition(":")):
        raise ValueError(
            f'{name!r} names no object: write "module:name", for example "torch.nn:Linear"'
        )
    module_name, _, path = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # user modules may raise any kind
        hint = ""
        if isinstance(error, ModuleNotFoundError):
            hint = (
                "; install it, or put its file next to the TOML file or its folder into PYTHONPATH"
            )
        raise ValueError(
            f"importing {module_name} failed: {type(error).__name__}: {error}{hint}"
        ) from error
    value: Any = module
    package = module_name.partition(".")[0]
    for part in path.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            raise ValueError(
                f"{name!r}: {module_name} has no {part}{suggestion(part, dir(value))}"
            ) from None
        if isinstance(value, ModuleType) and value.__name__.partition(".")[0] != package:
            raise ValueError(f"{name!r} leaves {package}: name the module {value.__name__} itself")
    return value


def call_object(table: TomlTable) -> Any:
    """Return the result of the call that a table describes, with ``partial`` the call itself."""
    if CALL in table and PARTIAL in table:
        raise ValueError(f"give {CALL} (call it) or {PARTIAL} (call it later), not both")
    name = table.get(CALL, table.get(PARTIAL))
    function = load_object(name)
    if not callable(function):
        raise ValueError(f'{name!r} cannot be called; for the object itself write "{PREFIX}{name}"')
    keywords = {key: value for key, value in table.items() if key not in (CALL, PARTIAL, ARGUMENTS)}
    positional = table.get(ARGUMENTS, [])
    if not isinstance(positional, list):
        raise ValueError(f"{ARGUMENTS} = {positional!r}: give an array of positional arguments")
    call = functools.partial(function, *resolve(positional), **resolve(keywords))
    if PARTIAL in table:
        return call
    try:
        return call()
    except Exception as error:  # user functions may raise any kind
        raise ValueError(f"calling {name} failed: {format_exception(error)}") from error


def parameters_of(function: Callable[..., Any], *exclude: str) -> dict[str, Parameter]:
    """Return the parameters of a function or class that are keys of a section or table."""
    parameters = signature(function, eval_str=True).parameters
    kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    return {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.kind in kinds and name not in ("self", *exclude)
    }


def keywords_of(table: TomlTable, parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    """Return the keyword arguments that a section or table gives.

    Objects are in place of what names them. ``"none"`` is ``None``, and a table for a key in
    ``TABLES`` an object of its class. Raises ``ValueError`` for an unknown key, a missing one, and
    an object that cannot be made.
    """
    for name in table:
        if name not in parameters:
            raise ValueError(unknown_name(name, parameters, "key"))
    for name, parameter in parameters.items():
        if parameter.default is Parameter.empty and name not in table:
            raise ValueError(f"{name} is missing; compss-train fit --keys says what it takes")
    keywords = {}
    for key, value in table.items():
        try:
            keywords[key] = _argument(key, value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{key}: {format_exception(error)}") from error
    return keywords


def _argument(key: str, value: Any) -> Any:
    """Return the argument that a key of a section or table gives."""
    if value == NONE:
        return None
    if key not in TABLES or is_object(value):
        return resolve(value)
    parameters = parameters_of(TABLES[key])
    if isinstance(value, dict):
        return TABLES[key](**keywords_of(value, parameters))
    if key in NAMED:
        return value
    raise ValueError(
        f"{value!r}: give a table, whose keys are {', '.join(parameters)}, or an object by its "
        "import path"
    )
