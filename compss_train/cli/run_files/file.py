"""``RunFile``: what a TOML file says about a run, with the settings of a command line."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from compss_train.cli.run_files import toml
from compss_train.cli.run_files.folder import CONFIGURATION
from compss_train.cli.run_files.problems import Problems, RunFileError, unknown

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
    def output(self) -> Path:
        """Where a run's files go: where the file says, else where a run's own file is, else below ``runs``."""
        named = self.section("output").get("folder")
        if isinstance(named, str):
            return self.home / named
        is_of_run = self.path.name == CONFIGURATION and HOME in self.table
        return self.path.parent if is_of_run else self.home / "runs" / self.path.stem

    def as_kept(self, seed: int) -> toml.Table:
        """Return what is kept in the folder of a run: what makes the same run there, from wherever that is."""
        kept = self.with_value("trainer", "seed", seed)
        output = {key: value for key, value in self.section("output").items() if key != "folder"}
        return {**kept.table, "output": output, HOME: str(self.home)}

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


def read_run_file(path: Path, settings: Iterable[str] = (), hint: str = "") -> RunFile:
    """Read a TOML file, or that of the run in a folder; raise ``RunFileError`` for one that cannot be read.

    The hint is told where there is no such file.
    """
    path = (path / CONFIGURATION if path.is_dir() else path).absolute()
    table = toml.with_settings(toml.read(path, hint), settings)
    named = table.get(HOME, "")
    home = path.parent / named if isinstance(named, str) else path.parent
    if not home.is_dir():
        raise RunFileError(f"{path}: there is no folder {home}, where this file was; write another {HOME} into it")
    return RunFile(path, home, table)
