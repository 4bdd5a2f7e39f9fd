"""What a run file may execute: what it names, which is said before anything of it runs.

Modules beside a run file are imported only if the file names them, or if one of them imports
another. Other files of the folder are none: a ``profile.py`` there is not imported when torch
imports Python's module of that name.
"""

import ast
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import chdir, contextmanager, suppress
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from compss_train._utils.imports import FOLDER_MODULES, FolderModules
from compss_train.cli.run_files import RunFile, RunFileError, is_of_other_user, say
from compss_train.cli.run_files.objects import CALL, PARTIAL, PREFIX, load_object

HARMLESS = ("torch.nn", "torch.optim", "compss_train")
"""Packages whose classes execute nothing but what their arguments say."""


def check_trust(file: RunFile, *, trusted: bool) -> None:
    """Say on standard error what a run file imports and calls, unless it is trusted.

    Raises ``RunFileError`` if the file, its folder, its modules or their folder belong to another
    user, who could execute anything with the rights of this one.
    """
    if trusted:
        return
    names = [name for name in named_objects(file.table) if not _is_harmless(name)]
    modules = modules_beside(file.home, names)
    action = f"runs {', '.join(names)}" if names else "makes objects"
    if modules:
        action += f", with {', '.join(modules)} from {file.home}"
    for path in (file.path, file.path.parent, file.home, *_files_of(modules, file.home)):
        if is_of_other_user(path):
            raise RunFileError(
                f"{path} belongs to user {path.stat().st_uid}, and {file.path.name} {action} with "
                "your rights: read it first, and add --trust if it does nothing but what it should"
            )
    if names:
        say(f"{file.path} {action} (--trust to hide this)")


def _files_of(modules: Iterable[str], folder: Path) -> Iterator[Path]:
    """Iterate over the files and folders that hold modules of a folder, and their bytecode."""
    cache = folder / "__pycache__"  # whose bytecode may be executed in place of the modules
    paths = [path for name in modules for path in (folder / f"{name}.py", folder / name)]
    for path in (*paths, cache):
        inside = path.rglob("*.py*") if path.is_dir() else ()
        yield from (file for file in (path, *inside) if file.exists())


def named_objects(value: Any) -> list[str]:
    """Return the sorted objects that a value of a run file names, as ``"module:name"``."""
    return sorted(set(_names_in(value)))


def _names_in(value: Any) -> Iterator[str]:
    """Iterate over the names of objects in a value of a run file."""
    if isinstance(value, str) and value.startswith(PREFIX):
        yield value.removeprefix(PREFIX)
    elif isinstance(value, list):
        for item in value:
            yield from _names_in(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key in (CALL, PARTIAL) and isinstance(item, str):
                yield item.removeprefix(PREFIX)
            else:
                yield from _names_in(item)


def _is_harmless(name: str) -> bool:
    """Return whether a name is a class of a package in ``HARMLESS``, which is imported already."""

    def inside(module: str) -> bool:
        return any(f"{module}.".startswith(f"{package}.") for package in HARMLESS)

    if not inside(name.partition(":")[0]):
        return False
    with suppress(ValueError):
        value = load_object(name)
        return isinstance(value, type) and inside(value.__module__)
    return False


def modules_beside(home: Path, names: Iterable[str]) -> list[str]:
    """Return the modules of a folder that hold objects, and those that these import.

    ``names`` are those of the objects. Import statements are read, wherever they are in a module;
    nothing is run. A package counts as a whole. Raises ``RunFileError`` for a module with the name
    of another one, which would be imported in its place.
    """
    modules: set[str] = set()
    candidates = [name.partition(":")[0].partition(".")[0] for name in names]
    while candidates:
        name = candidates.pop()
        if name not in modules and _is_module_of(home, name):
            modules.add(name)
            for file in [home / f"{name}.py", *(home / name).rglob("*.py")]:
                candidates += _imports(file)
    return sorted(modules)


def _is_module_of(home: Path, name: str) -> bool:
    """Return whether a module is that of a folder, which is not on Python's path."""
    spec = PathFinder.find_spec(name, [str(home)])
    if spec is None:
        return False
    installed = PathFinder.find_spec(name)
    if installed is not None and _places(installed) == _places(spec):
        return False
    if installed is None and name not in sys.stdlib_module_names:
        return True
    if spec.origin is None:
        # A folder without __init__.py, such as the one that wandb writes to, replaces no module.
        return False
    place = "Python's library"
    if installed is not None and installed.origin is not None:
        place = installed.origin
    raise RunFileError(
        f"{home / name} has the name of a module in {place}; rename it, also where it is imported"
    )


def _imports(file: Path) -> list[str]:
    """Return the modules and packages that the import statements of a file name."""
    names: list[str] = []
    # An error here is one that the import will raise.
    with suppress(OSError, SyntaxError, ValueError, RecursionError):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                names += [alias.name.partition(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.append(node.module.partition(".")[0])
    return names


def _places(spec: Any) -> list[str]:
    """Return where a module is: its file, or the folders of a package."""
    return [os.path.realpath(place) for place in spec.submodule_search_locations or [spec.origin]]


@contextmanager
def working_directory(file: RunFile) -> Iterator[None]:
    """Change to the folder of a run file, and let its modules be imported, also by workers.

    In processes that are started in the block Python does not import from the current folder.
    """
    finder = FolderModules(str(file.home), modules_beside(file.home, named_objects(file.table)))
    variables = {FOLDER_MODULES: json.dumps([finder.folder, finder.names]), "PYTHONSAFEPATH": "1"}
    for name in ("PYTHONPATH", "LD_LIBRARY_PATH"):
        path = os.environ.get(name)
        if path:  # an empty entry is the current folder, as in ":/usr/local/lib"
            variables[name] = os.pathsep.join(map(os.path.abspath, path.split(os.pathsep)))
    before = {name: os.environ.pop(name, None) for name in variables}
    os.environ.update(variables)
    sys.meta_path.append(finder)
    try:
        with chdir(file.home):
            yield
    finally:
        sys.meta_path.remove(finder)
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value
