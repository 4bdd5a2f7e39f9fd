"""``RunFile``: the TOML file of a run, with the settings of the command line applied to it."""

from __future__ import annotations

import copy
import sys
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from compss_train.cli.run_files.errors import ErrorCollector, RunFileError, unknown_name
from compss_train.cli.run_files.run_folder import RUN_FILE

Table = dict[str, Any]

SECTIONS = ("trainer", "network", "data", "validation", "build", "fit", "output")
HOME = "home"
"""The key, outside of all sections, of the folder that relative file names refer to; runs write it."""


@dataclass(frozen=True)
class RunFile:
    """The contents of a run file.

    Relative file names refer to the folder ``home``, and modules are imported from it.
    """

    path: Path
    home: Path
    table: Table

    @property
    def output(self) -> Path:
        """The run's folder: as the file says, else the folder of a run's own file, else ``runs/NAME``."""
        folder = self.section("output").get("folder")
        if isinstance(folder, str):
            return self.home / folder
        in_run_folder = self.path.name == RUN_FILE and HOME in self.table
        return self.path.parent if in_run_folder else self.home / "runs" / self.path.stem

    @property
    def has_validation(self) -> bool:
        """Whether the run evaluates on validation data after every round."""
        return bool(self.section("validation"))

    def section(self, name: str) -> Table:
        """Return a copy of a section, empty if the file does not have it."""
        section = self.table.get(name, {})
        return dict(section) if isinstance(section, dict) else {}

    def with_value(self, section: str, key: str, value: Any) -> RunFile:
        """Return a copy with another value of a key."""
        return replace(self, table={**self.table, section: {**self.section(section), key: value}})

    def dumps(self, seed: int) -> str:
        """Return TOML text that repeats this run from any folder: with its seed and home, without its output."""
        seeded = self.with_value("trainer", "seed", seed)
        output = {key: value for key, value in self.section("output").items() if key != "folder"}
        return tomli_w.dumps({**seeded.table, "output": output, HOME: str(self.home)})

    def check_sections(self, errors: ErrorCollector) -> None:
        """Collect unknown sections, and keys outside of sections."""
        for name, value in self.table.items():
            if name not in SECTIONS and name != HOME:
                where = f"[{name}]" if isinstance(value, dict) else name
                errors.add(where, unknown_name(name, SECTIONS, "section"))
            elif (name == HOME) is isinstance(value, dict):
                errors.add(name, f"{value!r} is not a section; write [{name}] and its keys below")

    @contextmanager
    def working_directory(self) -> Iterator[None]:
        """Change to the home folder and import modules from it, in this process and in processes that it starts."""
        sys.path.insert(0, str(self.home))
        try:
            with chdir(self.home):
                yield
        finally:
            with suppress(ValueError):  # user code may have removed it
                sys.path.remove(str(self.home))


def read_run_file(path: Path, settings: Iterable[str] = (), hint: str = "") -> RunFile:
    """Read a TOML file, or the one in a run's folder, and apply settings to it.

    Raises ``RunFileError`` for a file that cannot be read; its message ends with the hint.
    """
    path = (path / RUN_FILE if path.is_dir() else path).absolute()
    table = apply_settings(read_toml(path, hint), settings)
    relative = table.get(HOME, "")
    home = path.parent / relative if isinstance(relative, str) else path.parent
    if not home.is_dir():
        raise RunFileError(f"{path}: its {HOME} folder {home} does not exist; correct the key {HOME} in this file")
    return RunFile(path, home, table)


def read_toml(path: Path, hint: str = "") -> Table:
    """Return the contents of a TOML file; raise ``RunFileError``, with the hint, if it cannot be read or parsed."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunFileError(f"cannot read {path}: {error.strerror}{hint and f'; {hint}'}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RunFileError(f"{path} is not valid TOML: {error}") from error


def apply_settings(table: Table, settings: Iterable[str]) -> Table:
    """Return a copy of the table with each ``section.key=value`` set.

    A value is parsed as TOML (``3``, ``true``, ``[1, 2]``); any other text is a string, which needs no quotes.

    Raises ``RunFileError`` for a setting of another form, or of a key inside a value that is not a table.
    """
    changed = copy.deepcopy(table)
    for setting in settings:
        name, equals, text = setting.partition("=")
        *path, key = name.strip().split(".")
        if not (equals and key and path and all(path)):
            raise RunFileError(f"--set {setting}: give SECTION.KEY=VALUE, for example fit.num_epochs=3")
        _subtable(changed, path, setting)[key] = _parse_setting(text.strip())
    return changed


def _subtable(table: Table, path: list[str], setting: str) -> Table:
    for name in path:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise RunFileError(f"--set {setting}: {name} is {table!r} in the file, not a table with keys")
    return table


def _parse_setting(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    return parsed["value"] if len(parsed) == 1 else text
