"""Sources of the program's modules: processes import them that do not find them on their node."""

import importlib.util
import json
import os
import pickle
import socket
import sys
import zlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib.abc import ExecutionLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import ray

from compss_train._utils import private_names
from compss_train._utils.imports import FOLDER_MODULES
from compss_train.engines.watch import say

MOST_BYTES = 10 * 2**20
"""Largest size of all sources: with more, none is sent."""

_PACKAGE_FILE = "__init__.py"


class Source(NamedTuple):
    """A module's file."""

    path: str
    content: bytes


def send_sources(modules: Sequence[str | ModuleType] = ()) -> None:
    """Let the processes of this program find the modules beside its main file, and ``modules``.

    In a notebook they are in its folder; those of a run file are named in ``FOLDER_MODULES``. The
    head of the cluster keeps their sources until ``forget_sources``.
    """
    sources: dict[str, Source] = {}
    size = 0
    for path in [*map(_path_of, modules), *_program_modules()]:
        for name, file in _files_of(path, path.stem):
            content = file.read_bytes()
            sources[name] = Source(str(file), content)
            size += len(content)
            if size > MOST_BYTES:
                return
    if sources:
        private_names.keep_in_cluster(_key(), zlib.compress(pickle.dumps(sources)))


def forget_sources() -> None:
    """Let the cluster drop the sources of this program."""
    private_names.drop_from_cluster(_key())


def _path_of(module: str | ModuleType) -> Path:
    """Return the file of a module, or the folder of a package."""
    path = Path(module if isinstance(module, str) else module.__file__ or "")
    return path.parent if path.name == _PACKAGE_FILE else path


def _program_modules() -> list[Path]:
    """Return the modules and packages that this program can import beside its main file."""
    if FOLDER_MODULES in os.environ:
        folder, names = json.loads(os.environ[FOLDER_MODULES])
        return [path for path in _importable(Path(folder)) if path.stem in names]
    main_file = getattr(sys.modules["__main__"], "__file__", None)
    return _importable(Path(main_file).parent if main_file else Path.cwd())


def _key() -> str:
    return f"compss_train sources {ray.get_runtime_context().get_job_id()}"


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


class SentModules(MetaPathFinder, ExecutionLoader):
    """Imports the modules of the program that the node lacks; a line says so."""

    @cached_property
    def _sources(self) -> dict[str, Source]:
        kept = private_names.kept_in_cluster(_key())
        sources: dict[str, Source] = pickle.loads(zlib.decompress(kept)) if kept else {}
        return sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module is, or ``None`` (PEP 451)."""
        parent = fullname.rpartition(".")[0]
        is_of_other_package = (
            parent and getattr(sys.modules.get(parent), "__loader__", None) != self
        )
        if is_of_other_package or fullname not in self._sources:
            return None
        if not parent:
            say(
                f"module {fullname!r} is not on {socket.gethostname()}: a process there imports "
                f"it as {self._sources[fullname].path} was when the program began"
            )
        return importlib.util.spec_from_loader(fullname, self)

    def is_package(self, fullname: str) -> bool:
        """Return whether a module is a package."""
        return Path(self._sources[fullname].path).name == _PACKAGE_FILE

    def get_filename(self, fullname: str) -> str:
        """Return the path of a module on the program's node."""
        return self._sources[fullname].path

    def get_source(self, fullname: str) -> str:
        """Return the text of a module."""
        return importlib.util.decode_source(self._sources[fullname].content)
