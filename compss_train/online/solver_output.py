"""The files with the output of solvers: one for each run of a simulation, and for each rank."""

import glob
import itertools
import os
from contextlib import suppress
from pathlib import Path

SUFFIX = ".out"
"""Of the file to which the command itself writes."""


def new_file(folder: str, simulation: int | None) -> Path:
    """Create the file of a run of a simulation, in a folder that is created if necessary.

    It is ``simulation-000003.out``, where that exists ``simulation-000003-run-2.out``, and so on:
    what an earlier run has written stays. Without the number of a simulation it is ``solver.out``.
    Two runs that begin at the same time, on any nodes, get two files.

    Raises ``OSError`` if it cannot be created.
    """
    os.makedirs(folder, exist_ok=True)
    stem = "solver" if simulation is None else f"simulation-{simulation:06d}"
    name = stem
    runs = itertools.count(2)
    while True:
        path = Path(folder, f"{name}{SUFFIX}")
        try:
            path.touch(exist_ok=False)
            return path
        except FileExistsError:
            name = f"{stem}-run-{next(runs)}"


def newest_files(path: Path) -> list[Path]:
    """Return the file of a run, and the file of a rank that was written last, if ranks have some.

    They begin as it does, without its suffix, and are in the same folder.
    """
    others = [
        Path(name)
        for name in glob.glob(f"{glob.escape(str(path.with_suffix('')))}.*")
        if name != str(path) and os.path.isfile(name)
    ]
    return [path, *sorted(others, key=os.path.getmtime)[-1:]]


def end_of(path: Path, size: int) -> bytes:
    """Return the last bytes of a file; none if it cannot be read."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - size))
        return file.read()
    return b""
