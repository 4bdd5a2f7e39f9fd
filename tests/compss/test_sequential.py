"""The compss engine in plain python with pycompss installed: tasks run immediately in the process."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.documents import ROOT

SUITES = ("tests/engines/test_conformance.py", "tests/training/merging/test_merging.py")


def pycompss_folder():
    """Return the folder of COMPSs's pycompss, or "" if pycompss is installed in this environment."""
    home = os.environ.get("COMPSS_HOME")
    folder = Path(home, "Bindings", "python", "3") if home else None
    if folder is not None and (folder / "pycompss").is_dir():
        return str(folder)
    if importlib.util.find_spec("pycompss") is None:
        pytest.skip("needs pycompss, installed in this environment or below COMPSS_HOME")
    return ""


def test_the_suites_for_every_engine_pass():
    path = os.pathsep.join(filter(None, [pycompss_folder(), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--engines", "compss", *SUITES]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout
    assert "compss" not in done.stderr
