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
from compss_train.cli.run_files import RunFile, RunFileError
from compss_train.cli.run_files.objects import CALL, PARTIAL, PREFIX, load_object
from compss_train.reports import formatting

HARMLESS = ("torch.nn", "torch.optim", "compss_train")
"""Packages whose classes execute nothing but what their arguments say."""
ADMINISTRATOR = 0
"""The user id of the system's administrator, who can execute anything anyway."""


def check_trust(file: RunFile, *, trusted: bool) -> None:
    """Say on standard error what a run file imports and calls, unless it is trusted.

    Raises ``RunFileError`` if the file, its folder, its modules or their folder belong to another
    user, who could execute anything with the rights of this one.
    """
    if trusted:
        return
    names = [name for name in named_objects(file.table) if not _is_harmless(name)]
    what = f"runs {', '.join(names)}" if names else "makes objects"
    beside = modules_beside(file.home, names)
    if beside:
        what += f", with {', '.join(beside)} from {file.home}"
    places = [place for name in beside for place in (file.home / f"{name}.py", file.home / name)]
    cache = file.home / "__pycache__"  # whose bytecode may be executed in place of the modules
    inside = [path for place in (*places, cache) if place.is_dir() for path in place.rglob("*.py*")]
    owned = (path for path in (*places, cache, *inside) if path.exists())
    for path in (file.path, file.path.parent, file.home, *owned):
        if (owner := path.stat().st_uid) not in (os.getuid(), ADMINISTRATOR):
            raise RunFileError(
                f"{path} belongs to user {owner}, and {file.path.name} {what} with your rights: "
                "read it first, and add --trust if it does nothing but what it should"
            )
    if names:
        line = formatting.printable(f"compss-train: {file.path} {what} (--trust to hide this)")
        print(line.replace("\n", "\\n"), file=sys.stderr)


def named_objects(value: Any) -> list[str]:
    """Return the objects that a value of a run file names, as ``"module:name"``, in alphabetical
    order.
    """

    def found(item: Any, is_name: bool) -> Iterator[str]:
        if isinstance(item, str) and (is_name or item.startswith(PREFIX)):
            yield item.removeprefix(PREFIX)
        elif isinstance(item, list):
            for each in item:
                yield from found(each, False)
        elif isinstance(item, dict):
            for key, each in item.items():
                yield from found(each, key in (CALL, PARTIAL))

    return sorted(set(found(value, False)))


def _is_harmless(name: str) -> bool:
    """Return whether a name is a class of a package in ``HARMLESS``, which is imported already."""

    def inside(module: str) -> bool:
        return any(f"{module}.".startswith(f"{package}.") for package in HARMLESS)

    if not inside(name.partition(":")[0]):
        return False
    with suppress(ValueError):
        found = load_object(name)
        return isinstance(found, type) and inside(found.__module__)
    return False


def modules_beside(home: Path, names: Iterable[str]) -> list[str]:
    """Return the modules of a folder that hold the objects called ``names``, and those that these
    import.

    Import statements are read, wherever they are in a module; nothing is run. A package counts as a
    whole. Raises ``RunFileError`` for a module with the name of another one, which would be
    imported in its place.
    """
    found: set[str] = set()
    left = [name.partition(":")[0].partition(".")[0] for name in names]
    while left:
        name = left.pop()
        spec = PathFinder.find_spec(name, [str(home)])
        if name in found or spec is None:
            continue
        other = PathFinder.find_spec(name)
        if other is not None and _places(other) == _places(spec):
            continue  # the folder is on the path of Python
        if other is not None or name in sys.stdlib_module_names:
            if spec.origin is None:
                # A folder without __init__.py, such as the one that wandb writes to, replaces no
                # module.
                continue
            place = (
                "in Python's library"
                if other is None or other.origin is None
                else f"in {other.origin}"
            )
            raise RunFileError(
                f"{home / name} has the name of a module {place}; rename it, also where it is "
                "imported"
            )
        found.add(name)
        for file in [home / f"{name}.py", *(home / name).rglob("*.py")]:
            # Which its import will raise.
            with suppress(OSError, SyntaxError, ValueError, RecursionError):
                for node in ast.walk(ast.parse(file.read_bytes())):
                    if isinstance(node, ast.Import):
                        left += [alias.name.partition(".")[0] for alias in node.names]
                    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                        left.append(node.module.partition(".")[0])
    return sorted(found)


def _places(spec: Any) -> list[str]:
    """Return where a module is: its file, or the folders of a package."""
    return [os.path.realpath(place) for place in spec.submodule_search_locations or [spec.origin]]


@contextmanager
def working_directory(file: RunFile) -> Iterator[None]:
    """Change to the folder of the modules of a run file, and let them be imported, here and by
    worker processes.

    In processes that are started in the block Python does not import from the current folder.
    """
    finder = FolderModules(str(file.home), modules_beside(file.home, named_objects(file.table)))
    variables = {FOLDER_MODULES: json.dumps([finder.folder, finder.names]), "PYTHONSAFEPATH": "1"}
    for name in ("PYTHONPATH", "LD_LIBRARY_PATH"):
        # An empty entry is the current folder, as in ":/usr/local/lib".
        if path := os.environ.get(name):
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
