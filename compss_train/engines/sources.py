"""Sources of the program's modules: processes import them that do not find them on their node."""

import importlib.util
import json
import os
import pickle
import socket
import sys
import time
import zlib
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.abc import ExecutionLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from compss_train._utils.imports import FOLDER_MODULES
from compss_train._utils.installed import is_installed

MOST_BYTES = 10 * 2**20
"""Largest size of all sources: with more, none is sent."""

_PACKAGE_FILE = "__init__.py"


class Source(NamedTuple):
    """A module's file."""

    path: str
    content: bytes


def packed_sources(main_file: str | None, modules: Sequence[str | ModuleType] = ()) -> bytes:
    """Return the sources of the modules beside the program's main file, and of ``modules``.

    In a notebook, which has no main file, they are in its folder; those of a run file are named in
    ``FOLDER_MODULES``. They are compressed; empty if there are none, or too many.

    Raises ``ValueError`` for one of ``modules`` that does not exist.
    """
    sources: dict[str, Source] = {}
    size = 0
    for path in [*map(_path_of, modules), *_program_modules(main_file)]:
        for name, file in _files_of(path, path.stem):
            with suppress(PermissionError):  # the program cannot have imported it either
                content = file.read_bytes()
                sources[name] = Source(str(file), content)
                size += len(content)
            if size > MOST_BYTES:
                return b""
    return zlib.compress(pickle.dumps(sources)) if sources else b""


def main_file() -> str | None:
    """Return the main file of this program; ``None`` in a notebook."""
    return getattr(sys.modules["__main__"], "__file__", None)


def _path_of(module: str | ModuleType) -> Path:
    """Return the file of a module, or the folder of a package."""
    path = Path(module if isinstance(module, str) else module.__file__ or "")
    if not path.exists():
        raise ValueError(
            f"modules: there is no {str(module)!r}; give modules that you have imported, or paths "
            "of modules or packages"
        )
    return path.parent if path.name == _PACKAGE_FILE else path


def _program_modules(main_file: str | None) -> list[Path]:
    """Return the modules and packages that this program can import beside its main file."""
    if FOLDER_MODULES in os.environ:
        folder, names = json.loads(os.environ[FOLDER_MODULES])
        return [path for path in _importable(Path(folder)) if path.stem in names]
    return _importable(Path(main_file).parent if main_file else Path.cwd())


def _importable(folder: Path) -> list[Path]:
    """Return the modules and packages in a folder."""
    packages = [path.parent for path in folder.glob(f"*/{_PACKAGE_FILE}")]
    return sorted([*folder.glob("*.py"), *packages])


def _files_of(path: Path, name: str) -> Iterator[tuple[str, Path]]:
    """Iterate over the files of a module or package, with the names by which they are imported."""
    if path.is_file():
        yield name, path
    elif (path / _PACKAGE_FILE).is_file():
        yield name, path / _PACKAGE_FILE
        for part in _importable(path):
            if part.name != _PACKAGE_FILE:
                yield from _files_of(part, f"{name}.{part.stem}")


class LoadedModules:
    """The modules that this program has loaded, as of the last look.

    Those of installed packages do not count, nor does the main file, whose functions are sent.
    """

    def __init__(self) -> None:
        self._loaded: dict[str, tuple[object, float]] = {}
        """What each was loaded by, and when it was seen first (Unix time)."""
        self.look()

    def look(self) -> list[str]:
        """Return the names of those that were loaded again since the last look.

        ``importlib.reload`` does so, and ``%autoreload`` of IPython.
        """
        now = time.time()
        again = []
        for name, module in list(sys.modules.items()):
            spec = vars(module).get("__spec__") if isinstance(module, ModuleType) else None
            before, _ = self._loaded.get(name, (None, now))
            if before is not spec:
                self._loaded[name] = spec, now
                if before is not None and _file_of(name) is not None:
                    again.append(name)
        return sorted(again)

    def changed(self) -> list[str]:
        """Return the names of those whose files have changed since they were seen first."""
        names = []
        for name, (_, since) in list(self._loaded.items()):
            file = _file_of(name)
            with suppress(OSError):  # of a module in an archive
                if file is not None and os.stat(file).st_mtime > since:
                    names.append(name)
        return sorted(names)


def _file_of(name: str) -> str | None:
    """Return the file of a module of the program; ``None`` for others."""
    module = sys.modules.get(name)
    file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
    is_ours = name != "__main__" and isinstance(file, str) and not is_installed(file)
    return file if is_ours else None


@lru_cache(maxsize=1)
def _unpacked(packed: bytes) -> dict[str, Source]:
    sources: dict[str, Source] = pickle.loads(zlib.decompress(packed)) if packed else {}
    return sources


class SentModules(MetaPathFinder, ExecutionLoader):
    """Imports the modules of the program that the node lacks, and says so.

    It stands behind the other finders of a process: the node's modules come first.
    """

    @property
    @abstractmethod
    def packed(self) -> bytes:
        """What ``packed_sources`` returned in the coordinator."""

    @abstractmethod
    def say(self, message: str) -> None:
        """Tell the user which module is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module is, or ``None`` (PEP 451)."""
        parent = fullname.rpartition(".")[0]
        is_of_other_package = (
            parent and getattr(sys.modules.get(parent), "__loader__", None) != self
        )
        if is_of_other_package or fullname not in _unpacked(self.packed):
            return None
        if not parent:
            self.say(
                f"module {fullname!r} is not on {socket.gethostname()}: a process there imports "
                f"it as {self.get_filename(fullname)} was when the program began"
            )
        spec = importlib.util.spec_from_loader(fullname, self)
        if spec is not None and spec.submodule_search_locations:
            # The folder of the package may be on this node, with other versions of its parts.
            spec.submodule_search_locations = []
        return spec

    def is_package(self, fullname: str) -> bool:
        """Return whether a module is a package."""
        return Path(self.get_filename(fullname)).name == _PACKAGE_FILE

    def get_filename(self, fullname: str) -> str:
        """Return the path of a module on the program's node."""
        return _unpacked(self.packed)[fullname].path

    def get_source(self, fullname: str) -> str:
        """Return the text of a module."""
        return importlib.util.decode_source(_unpacked(self.packed)[fullname].content)
