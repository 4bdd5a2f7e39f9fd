"""Writing files atomically: readers see the complete old or the complete new file."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the same folder, with the same suffix, and rename it to ``path`` after the block.

    If the block raises, the temporary file is removed and ``path`` stays as it was.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomic(path: Path, text: str) -> None:
    """Write a text file under a temporary name, and rename it when it is complete."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def is_special_file(path: Path) -> bool:
    """Return whether the path exists and is neither a file nor a folder, such as ``/dev/null``."""
    return path.exists() and not (path.is_file() or path.is_dir())


def check_writable(path: Path) -> None:
    """Create an empty file and its folders, unless it exists; raise ``OSError`` if it cannot be written.

    Special files such as ``/dev/null`` are refused, because an atomic write would replace them.
    """
    if is_special_file(path):
        raise FileExistsError(errno.EEXIST, "it exists and is not a regular file; give another path", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8"):
        pass
