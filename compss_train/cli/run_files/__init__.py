"""Training runs described by TOML files: what ``compss-train fit`` reads and writes, and other commands use.

This module has the file itself, with the settings of the command line applied to it, and its errors.
"""

from __future__ import annotations

import copy
import sys
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import tomli_w

from compss_train._utils.validation import suggestion

T = TypeVar("T")
P = ParamSpec("P")
Table = dict[str, Any]

SECTIONS = ("trainer", "network", "data", "validation", "build", "fit", "output")
RUN_FILE = "config.toml"
"""The name of the run file in the folder of a run."""
HOME = "home"
"""The key, outside of all sections, of the folder that relative file names refer to; runs write it."""


class RunFileError(ValueError):
    """A run file, or an object that it names, is invalid; ``messages`` has one for each error, with its key."""

    def __init__(self, text: str, messages: Iterable[str] = ()) -> None:
        super().__init__(text)
        self.messages = list(messages)


class Errors:
    """Collects errors in a run file, each with the section or key that it belongs to, to raise all at once."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self._cause: Exception | None = None

    def add(self, where: str, message: str) -> None:
        """Add an error of a section or key."""
        self.messages.append(f"{where}: {message}" if where else message)

    def attempt(self, where: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return what a function returns; add what it raises, and return ``None``."""
        try:
            return function(*args, **kwargs)
        except Exception as error:  # user functions may raise any kind
            self._cause = self._cause or error
            if isinstance(error, RunFileError) and error.messages:
                self.messages += error.messages
            else:
                self.add(where, format_exception(error))
            return None

    def check(self) -> None:
        """Raise ``RunFileError`` if there are errors."""
        if self.messages:
            raise self.found("")

    def found(self, source: str) -> RunFileError:
        """Return the error to raise, which lists all messages; it begins with the name of their source."""
        messages = [message.replace("\n", "\n    ") for message in self.messages]
        text = f" {messages[0]}" if len(messages) == 1 else "".join(f"\n  {message}" for message in messages)
        error = RunFileError(f"{source}:{text}", self.messages)
        error.__cause__ = self._cause
        return error


def format_exception(error: BaseException) -> str:
    """Return the message of an exception, after its type unless its message is written for users."""
    message = exception_message(error)
    if isinstance(error, ValueError | ModuleNotFoundError | OSError) and message:
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def exception_message(error: BaseException) -> str:
    """Return the message of an exception; for an error of the operating system, the file and the reason."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def append_notes(message: str, error: BaseException, *lines: str) -> str:
    """Return a message followed by the notes of an exception and more lines, all indented."""
    return "\n  ".join([message, *getattr(error, "__notes__", ()), *lines])


def unknown_name(name: str, accepted: Collection[str], kind: str = "key") -> str:
    """Return the message for an unknown name: the most similar name, and all accepted ones."""
    return f"unknown {kind}{suggestion(name, accepted) or '.'} The {kind}s are {', '.join(accepted)}"


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

    def check_sections(self, errors: Errors) -> None:
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
        part = changed
        for name in path:
            part = part.setdefault(name, {})
            if not isinstance(part, dict):
                raise RunFileError(f"--set {setting}: {name} is {part!r} in the file, not a table with keys")
        part[key] = text.strip()
        with suppress(tomllib.TOMLDecodeError, RecursionError):
            parsed = tomllib.loads(f"value = {text}")
            part[key] = parsed["value"] if len(parsed) == 1 else part[key]
    return changed
