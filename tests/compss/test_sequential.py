"""Plain python where pycompss is installed: the engine's tasks run in the process, as all of PyCOMPSs does then."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.documents import ROOT

SUITES = ("tests/engines/test_conformance.py", "tests/training/merging/test_merging.py")


def binding():
    """Return the folder that pycompss is in, or nothing where it is installed as any package."""
    home = os.environ.get("COMPSS_HOME")
    folder = Path(home, "Bindings", "python", "3") if home else None
    if folder is not None and (folder / "pycompss").is_dir():
        return str(folder)
    if importlib.util.find_spec("pycompss") is None:
        pytest.skip("needs pycompss: it is not installed, and COMPSS_HOME does not say where it is")
    return ""


def test_the_suites_for_every_engine_pass():
    path = os.pathsep.join(filter(None, [binding(), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--engines", "compss", *SUITES]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout
    assert "compss" not in done.stderr
