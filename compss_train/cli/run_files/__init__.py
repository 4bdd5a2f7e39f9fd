"""A run on the disk: its TOML file with settings of the command line, errors in it, its folder."""

import copy
import json
import os
import shutil
import socket
import sys
import tomllib
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from compss_train._utils import files, validation
from compss_train.reports import formatting

TomlTable = dict[str, Any]

SECTIONS = ("trainer", "network", "data", "validation", "build", "fit", "output")
RUN_FILE = "config.toml"
"""The name of the run file in the folder of a run."""
HOME = "home"
"""The key, outside of all sections, of the folder that relative file names refer to."""
SOURCE = "source"
"""The key, outside of all sections, of the run file that was given, relative to the home folder."""
ADMINISTRATOR = 0
"""The user id of the system's administrator, who can execute anything anyway."""


class RunFileError(ValueError):
    """A run file, or an object that it names, is invalid."""


class Errors:
    """Collects the errors of independent parts of a run file, to raise all at once."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self._cause: Exception | None = None

    def add(self, where: str, message: str) -> None:
        """Add an error of a section or key."""
        self.messages.append(f"{where}: {message}".replace("\n", "\n    "))

    @contextmanager
    def collect(self, where: str) -> Iterator[None]:
        """Add what the block raises, with the section or key that it is about."""
        try:
            yield
        except Exception as error:  # user functions may raise any kind
            self._cause = self._cause or error
            self.add(where, format_exception(error))

    def check(self, source: Path) -> None:
        """Raise ``RunFileError`` if there are errors; it begins with the name of their source."""
        if not self.messages:
            return
        text = f" {self.messages[0]}"
        if len(self.messages) > 1:
            text = "".join(f"\n  {message}" for message in self.messages)
        raise RunFileError(f"{source}:{text}") from self._cause


def format_exception(error: BaseException) -> str:
    """Return the message of an exception, after its type unless the message is for users."""
    message = exception_message(error)
    if isinstance(error, ValueError | ModuleNotFoundError | OSError) and message:
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def exception_message(error: BaseException) -> str:
    """Return the message of an exception.

    For an error of the operating system it is the file and the reason.
    """
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def append_notes(message: str, error: BaseException, *lines: str) -> str:
    """Return a message followed by the notes of an exception and more lines, all indented."""
    return "\n  ".join([message, *getattr(error, "__notes__", ()), *lines])


def unknown_name(name: str, accepted: Collection[str], kind: str) -> str:
    """Return the message for an unknown name: the most similar name, and all accepted ones."""
    hint = validation.suggestion(name, accepted) or "."
    return f"unknown {kind} {name}{hint} The {kind}s are {', '.join(accepted)}"


@dataclass(frozen=True)
class RunFile:
    """The contents of a run file.

    Relative file names refer to the folder ``home``, and modules are imported from it.
    """

    path: Path
    home: Path
    table: TomlTable

    @property
    def output(self) -> Path:
        """The run's folder: as the file says, else that of a run's own file, else ``runs/NAME``."""
        folder = self.section("output").get("folder")
        if isinstance(folder, str):
            return self.home / folder
        in_run_folder = self.path.name == RUN_FILE and HOME in self.table
        return self.path.parent if in_run_folder else self.home / "runs" / self.path.stem

    def section(self, name: str) -> TomlTable:
        """Return a copy of a section, empty if the file does not have it."""
        section = self.table.get(name, {})
        return dict(section) if isinstance(section, dict) else {}

    def with_value(self, section: str, key: str, value: Any) -> "RunFile":
        """Return a copy with another value of a key."""
        return replace(self, table={**self.table, section: {**self.section(section), key: value}})

    def dumps(self, seed: int) -> str:
        """Return TOML text that repeats this run from any folder.

        It has the seed of the run, its home and the name of its run file there, and not its output
        folder.
        """
        seeded = self.with_value("trainer", "seed", seed)
        output = {key: value for key, value in self.section("output").items() if key != "folder"}
        source = self.table.get(SOURCE, os.path.relpath(self.path, self.home))
        places = {HOME: str(self.home), SOURCE: source}
        return tomli_w.dumps({**seeded.table, "output": output, **places})

    def check_sections(self, errors: Errors) -> None:
        """Collect unknown sections, and values in place of sections."""
        for name, value in self.table.items():
            if name not in (*SECTIONS, HOME, SOURCE):
                errors.add("top level", unknown_name(name, SECTIONS, "section"))
            elif name in SECTIONS and not isinstance(value, dict):
                hint = f"write [{name}] and its keys below"
                errors.add("top level", f"{name} = {value!r} is not a section; {hint}")


def read_run_file(path: Path, settings: Iterable[str] = (), hint: str = "") -> RunFile:
    """Read a TOML file, or the one in a run's folder, and apply settings to it.

    A run whose home folder is gone, such as one in a temporary copy that ``ray job submit`` made,
    has the current folder as its home if that holds the run file; a line on standard error says so.
    Raises ``RunFileError`` for a file that cannot be read; its message ends with the hint.
    """
    path = (path / RUN_FILE if path.is_dir() else path).absolute()
    table = apply_settings(read_toml(path, hint), settings)
    relative = table.get(HOME, "")
    home = path.parent / relative if isinstance(relative, str) else path.parent
    if not home.is_dir():
        home = _current_home(path, home, table.get(SOURCE))
    return RunFile(path, home, table)


def _current_home(path: Path, home: Path, source: Any) -> Path:
    """Return the current folder as the home of a run if it holds its run file, ``source``.

    Raises ``RunFileError`` if it does not, or if it belongs to another user.
    """
    lost = f"{path}: its {HOME} folder {home} does not exist"
    correction = f"correct the key {HOME} in this file"
    if not isinstance(source, str):
        raise RunFileError(f"{lost}; {correction}")
    folder = Path.cwd()
    if not (folder / source).is_file():
        raise RunFileError(
            f"{lost}. Run the command in the folder that has {source}, with the modules and files "
            f"of the run, or {correction}"
        )
    for place in (folder, folder / source):
        if is_of_other_user(place):
            raise RunFileError(f"{lost}, and {place} belongs to another user; {correction}")
    say(f"{lost}; modules and files are those of {folder}, which has {source}")
    return folder


def say(text: str) -> None:
    """Print a line on standard error; names of files in it do nothing to a terminal."""
    line = formatting.printable(f"compss-train: {text}").replace("\n", "\\n")
    print(line, file=sys.stderr)


def is_of_other_user(path: Path) -> bool:
    """Return whether a file belongs to another user, who is not the administrator."""
    return path.stat().st_uid not in (os.getuid(), ADMINISTRATOR)


def read_toml(path: Path, hint: str = "") -> TomlTable:
    """Return the contents of a TOML file.

    Raises ``RunFileError``, with the hint, if it cannot be read or parsed.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunFileError(f"cannot read {path}: {error.strerror}{hint and f'; {hint}'}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RunFileError(f"{path} is not valid TOML: {error}") from error


def apply_settings(table: TomlTable, settings: Iterable[str]) -> TomlTable:
    """Return a copy of the table with each ``section.key=value`` set.

    A value is parsed as TOML (``3``, ``true``, ``[1, 2]``); any other text is a string, which needs
    no quotes. Raises ``RunFileError`` for a setting of another form, or of a key inside a value
    that is not a table.
    """
    changed = copy.deepcopy(table)
    for setting in settings:
        name, equals, text = setting.partition("=")
        *path, key = name.strip().split(".")
        if not (equals and key and path and all(path)):
            raise RunFileError(
                f"--set {setting}: give SECTION.KEY=VALUE, for example fit.num_epochs=3"
            )
        part = changed
        for name in path:
            part = part.setdefault(name, {})
            if not isinstance(part, dict):
                raise RunFileError(
                    f"--set {setting}: {name} is {part!r} in the file, not a table with keys"
                )
        part[key] = _parsed(text)
    return changed


def _parsed(text: str) -> Any:
    """Return the value of a text in TOML, or the text itself."""
    with suppress(tomllib.TOMLDecodeError, RecursionError):
        table = tomllib.loads(f"value = {text}")
        if len(table) == 1:  # and no other line, which is no value
            return table["value"]
    return text.strip()


RUNNING = "running"
"""The state of a run whose process has not ended."""
KILLED = "killed"
"""The state of a run whose process has ended without recording why."""


class RunFolder:
    """The paths of a run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_file = path / RUN_FILE
        """The run file with all settings."""
        self.configuration = path / "configuration.json"
        """``trainer.configuration`` at the start of the fit: options, versions and the machine."""
        self.history = path / "history.jsonl"
        """The history as JSON lines, one a round."""
        self.parameters = path / "parameters.safetensors"
        """The final parameters; after an interrupted fit, those of the last complete round."""
        self.averaged = path / "averaged.safetensors"
        """Their average, of a fit with ``Merge(averaging=...)``."""
        self.checkpoints = path / "checkpoints"
        """The folder of checkpoints."""
        self.report = path / "report.html"
        """The HTML page with curves and the timeline of the workers."""
        self.state_file = path / "run.json"
        """The state of the run as JSON, with its process."""
        self.csv = path / "history.csv"
        """The history as CSV."""
        self.tensorboard = path / "tensorboard"
        """The log folder of TensorBoard."""
        self.profile = path / "profile.json"
        """The trace of a worker's round, under its default name."""

    @property
    def has_results(self) -> bool:
        """Whether a run has completed a round here."""
        has_rounds = self.history.exists() and self.history.stat().st_size > 0
        return has_rounds or self.parameters.exists() or self.has_checkpoints

    @property
    def has_checkpoints(self) -> bool:
        """Whether the folder holds a checkpoint."""
        return any(self.checkpoints.glob("round-*"))

    def write_state(self, state: str, sha256: str | None = None) -> None:
        """Write the state of the run of this process, and the checksum of its parameters."""
        content = {
            "state": state,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "parameters": sha256,
        }
        files.write_atomic(self.state_file, json.dumps(content))

    def sha256(self) -> str | None:
        """Return the checksum of the parameters that the run has saved; ``None`` if unknown."""
        with suppress(OSError, ValueError, TypeError, KeyError):
            content = json.loads(self.state_file.read_text(encoding="utf-8"))
            return str(content["parameters"]) if content["parameters"] else None
        return None

    def state(self) -> str | None:
        """Return the state of the run, such as ``"complete"`` or ``"stopped by ..."``.

        It is ``None`` if unknown, and ``RUNNING`` while the process runs. It is ``KILLED`` if the
        process that wrote ``RUNNING`` on this machine has ended.
        """
        try:
            content = json.loads(self.state_file.read_text(encoding="utf-8"))
            state = str(content["state"])
            is_of_this_machine = content["host"] == socket.gethostname()
            pid = int(content["pid"])
        except (OSError, ValueError, TypeError, KeyError):
            return None
        if state == RUNNING and is_of_this_machine and not files.is_running(pid):
            return KILLED
        return state

    def existing_files(self) -> list[Path]:
        """Return the files and folders that exist."""
        paths = (
            *(self.parameters, self.averaged, self.history, self.csv, self.report, self.profile),
            *(self.run_file, self.configuration, self.state_file),
            *(self.checkpoints, self.tensorboard),
        )
        return [path for path in paths if path.exists()]

    def clear(self) -> None:
        """Remove the files of a run, and no others."""
        for path in self.existing_files():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
