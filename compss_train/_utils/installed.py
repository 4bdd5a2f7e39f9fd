"""``is_installed``: whether a source file is of an installed package, or of a user's program."""

from functools import lru_cache
from importlib.metadata import distributions
from pathlib import Path

_LIBRARY_FOLDERS = "site-packages", "dist-packages"


@lru_cache(maxsize=10_000)
def is_installed(file: str) -> bool:
    """Return whether a source file is of a package that was installed.

    It is in the folder of an environment, or in one of ``pip install --target``. Packages that are
    installed for editing are a user's.
    """
    if any(folder in file for folder in _LIBRARY_FOLDERS):
        return True
    top = Path(file)
    for folder in top.parents:
        if not (folder / "__init__.py").exists():
            break
        top = folder
    return top.stem in _installed_in(top.parent)


@lru_cache(maxsize=100)
def _installed_in(folder: Path) -> frozenset[str]:
    """Return the names of the modules and packages that were installed into a folder."""
    names: set[str] = set()
    for package in distributions(path=[str(folder)]):
        files = package.files or ()
        # The metadata of sources, beside them, list files, too, but have no RECORD.
        if any(file.name == "RECORD" for file in files):
            names.update(Path(file.parts[0]).stem for file in files)
    return frozenset(names)
