"""What a run file executes: the modules that it names are imported, and may do anything. Checks before they are."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compss_train.cli.run_files.errors import RunFileError
from compss_train.cli.run_files.objects import CALL, PARTIAL, PREFIX
from compss_train.cli.run_files.run_file import RunFile

KNOWN = ("compss_train", "torch", "numpy")
"""Packages that a program that trains has imported already."""
ADMINISTRATOR = 0
"""The user id of the system's administrator, who can execute anything anyway."""


def check_trust(file: RunFile, *, trusted: bool) -> None:
    """Say on standard error which modules the run's file imports, unless it is trusted.

    Raises ``RunFileError`` if the file, its folder or the folder of its modules belongs to another user, who could
    execute anything with the rights of this one.
    """
    if trusted:
        return
    modules = sorted(set(_modules(file.table)))
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
    """Iterate over the modules that a value of a run file names, except for well-known ones."""
    if isinstance(value, str) and value.startswith(PREFIX):
        yield from _module(value.removeprefix(PREFIX))
    elif isinstance(value, list):
        for item in value:
            yield from _modules(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _module(item) if key in (CALL, PARTIAL) and isinstance(item, str) else _modules(item)


def _module(name: str) -> Iterator[str]:
    module = name.partition(":")[0]
    if module.partition(".")[0] not in KNOWN:
        yield module


def _other_owner(path: Path) -> str | None:
    """Return the owner of a path if it is neither this user nor the administrator."""
    if not hasattr(os, "getuid"):
        return None
    owner = path.stat().st_uid
    if owner in (os.getuid(), ADMINISTRATOR):
        return None
    try:
        return path.owner()
    except KeyError:
        return f"user {owner}"
