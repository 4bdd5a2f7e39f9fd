"""``RunFile``: what a TOML file says about a run, with the settings of a command line."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from compss_train.runs import toml
from compss_train.runs.folder import CONFIGURATION
from compss_train.runs.problems import Problems, unknown

SECTIONS = ("trainer", "network", "data", "validation", "build", "fit", "output")
HOME = "home"
"""The key, outside of all sections, for the folder that names in the file are relative to."""


@dataclass(frozen=True)
class RunFile:
    """A run that is described: ``home`` is the folder that relative names in it, and its modules, are found in."""

    path: Path
    home: Path
    table: toml.Table

    @property
    def name(self) -> str:
        """What the run is called: as the file, or as the folder of an earlier run."""
        return self.path.parent.name if self.path.name == CONFIGURATION else self.path.stem

    def section(self, name: str) -> dict[str, Any]:
        """Return what a section holds, nothing where there is none."""
        section = self.table.get(name, {})
        return dict(section) if isinstance(section, dict) else {}

    def with_value(self, section: str, key: str, value: Any) -> RunFile:
        """Return the same with another value of a key."""
        return replace(self, table={**self.table, section: {**self.section(section), key: value}})

    @property
    def is_validated(self) -> bool:
        """Whether there are data to evaluate on after every round."""
        return bool(self.section("validation"))

    def check_sections(self, problems: Problems) -> None:
        """Note unknown sections, and keys outside of all."""
        for name, value in self.table.items():
            if name not in SECTIONS and name != HOME:
                problems.add(f"[{name}]" if isinstance(value, dict) else name, unknown(name, SECTIONS, "section"))
            elif (name == HOME) is isinstance(value, dict):
                problems.add(name, f"{value!r} is no section; write [{name}] and its keys below")

    @contextmanager
    def at_home(self) -> Iterator[None]:
        """Let relative names, and modules next to the file, be found, in worker processes that start too."""
        sys.path.insert(0, str(self.home))
        try:
            with chdir(self.home):
                yield
        finally:
            with suppress(ValueError):  # what ran may have changed it
                sys.path.remove(str(self.home))


def read_run_file(path: Path, settings: Iterable[str] = ()) -> RunFile:
    """Read a TOML file, or that of the run in a folder; raise ``RunFileError`` for one that cannot be read."""
    path = (path / CONFIGURATION if path.is_dir() else path).absolute()
    table = toml.with_settings(toml.read(path), settings)
    home = table.get(HOME)
    return RunFile(path, path.parent / home if isinstance(home, str) else path.parent, table)
