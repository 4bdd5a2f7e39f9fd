"""Reading a TOML file with settings of the command line, and writing one."""

from __future__ import annotations

import copy
import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from compss_train.cli.run_files.problems import RunFileError

Table = dict[str, Any]


def read(path: Path, hint: str = "") -> Table:
    """Return what is in a TOML file; raise ``RunFileError`` for one that is not there, with a hint, or no TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunFileError(f"cannot read {path}: {error.strerror}{hint and f'; {hint}'}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RunFileError(f"{path} is no TOML: {error}") from error


def with_settings(table: Table, settings: Iterable[str]) -> Table:
    """Return the table with each ``section.key=value`` put into it.

    A value is TOML (``3``, ``true``, ``[1, 2]``) and else a text, which needs no quotes.

    Raises ``RunFileError`` for a setting of another form, or inside what is no table.
    """
    changed = copy.deepcopy(table)
    for setting in settings:
        name, equals, text = setting.partition("=")
        *path, key = name.strip().split(".")
        if not (equals and key and path and all(path)):
            raise RunFileError(f"--set {setting}: give SECTION.KEY=VALUE, for example fit.num_epochs=3")
        _inside(changed, path, setting)[key] = _value(text.strip())
    return changed


def _inside(table: Table, path: list[str], setting: str) -> Table:
    for name in path:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise RunFileError(f"--set {setting}: {name} is {table!r} in the file, no table with keys")
    return table


def _value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def dumps(table: Mapping[str, Any]) -> str:
    """Return a TOML file's text with these values: sections for tables, their own tables on one line."""
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    lines = _lines(plain)
    for name, section in table.items():
        if isinstance(section, dict):
            lines += ["", f"[{_key(name)}]", *_lines(section)]
    return "\n".join(lines).lstrip("\n") + "\n"


def _lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{_key(key)} = {_inline(value)}" for key, value in table.items()]


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _text(key)


def _text(text: str) -> str:
    # JSON's escapes are TOML's, too, but it leaves one control character as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _inline(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        pairs = ", ".join(f"{_key(key)} = {_inline(item)}" for key, item in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    return str(value)  # integers, dates and times
