"""Compiles and loads the library that makes torch believe in CUDA devices."""

import ctypes
import hashlib
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("devices.cpp")
CACHE = SOURCE.parents[2] / "build" / "emulated_gpu"


def compiled() -> Path:
    """Return the library for the torch of this environment; compile it the first time."""
    found = importlib.util.find_spec("torch")
    torch = Path(found.origin).parent
    key = hashlib.sha256(SOURCE.read_bytes() + (torch / "version.py").read_bytes()).hexdigest()[:16]
    library = CACHE / f"devices-{key}.so"
    if not library.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        unfinished = CACHE / f"{key}-{os.getpid()}.so"
        options = ["-O1", "-std=c++20", "-shared", "-fPIC", f"-I{torch / 'include'}"]
        libraries = [f"-L{torch / 'lib'}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{torch / 'lib'}"]
        subprocess.run(
            ["g++", *options, str(SOURCE), *libraries, "-o", str(unfinished)], check=True
        )
        unfinished.rename(library)
    return library


def why_not() -> str | None:
    """Return why devices cannot be emulated here, or ``None``."""
    if shutil.which("g++") is None:
        return "there is no g++, which compiles a library of 90 lines for it"
    try:
        compiled()
    except subprocess.CalledProcessError:
        return "the library does not compile with this version of torch"
    return None


def load() -> None:
    """Load the library; torch must not have been imported, as it remembers its first answer."""
    ctypes.CDLL(str(compiled()), mode=ctypes.RTLD_GLOBAL)
