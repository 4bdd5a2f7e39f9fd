"""Files that are there whole or not at all, whoever reads them while they are written."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a name in the same folder, with the same suffix, of a file that then takes the place of ``path``.

    Where the block raises, what was written is removed and ``path`` is as it was.
    """
    path = Path(path)
    unfinished = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Write a file under another name, and rename it when it is complete."""
    with replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8", newline="")


def is_no_file(path: Path) -> bool:
    """Tell whether something is there that is neither a file nor a folder, such as ``/dev/null``."""
    return path.exists() and not (path.is_file() or path.is_dir())


def check_writable(path: Path) -> None:
    """Make the file, empty, and its folders, unless it is there; raise ``OSError`` where it cannot be written.

    What is there and is no file is refused: another would be put in the place of ``/dev/null``, say.
    """
    if is_no_file(path):
        raise FileExistsError(errno.EEXIST, "it is there and is no file", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8"):
        pass
