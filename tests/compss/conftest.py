"""Applications of COMPSs, started as users start them; skipped where there is no COMPSs."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers.processes import ROOT

INSIDE = Path(__file__).parent / "inside"

LIMIT = 400.0
"""Seconds after which an application hangs: it takes 10 s, and 100 s where others use the cores."""
START = 200.0
"""Seconds in which an application has begun to train."""
OF_THREE = 1300
"""Seconds of a test that runs three applications, or the tests of many modules in one."""


@dataclass(frozen=True)
class Done:
    """An application that has ended."""

    returncode: int
    output: str
    log: Path
    """COMPSs's folder for this run."""


class Application:
    """An application that runs.

    It has a session of its own and its output is a file: COMPSs may leave processes that would keep
    a pipe open.
    """

    def __init__(
        self, folder: Path, app: Path, args: tuple[object, ...], flags: tuple[str, ...]
    ) -> None:
        self.folder = folder
        self.output = folder / "output.txt"
        command = [
            str(ROOT / "runcompss" / "laptop.sh"),
            *(f"--python_interpreter={sys.executable}", f"--log_dir={folder}", "--units=2", *flags),
            *(str(app), *map(str, args)),
        ]
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, cwd=folder, start_new_session=True
            )

    def wait(self, seconds: float) -> Done:
        """Wait for the end, which must come in time."""
        try:
            returncode = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(
                f"the application did not end within {seconds} s:\n{self.output.read_text()}"
            )
        finally:
            self.kill()
        logs = sorted((self.folder / ".COMPSs").glob("*"))
        return Done(returncode, self.output.read_text(), logs[-1] if logs else self.folder)

    def kill(self) -> None:
        """End the application: the script ends COMPSs's processes when it gets SIGTERM."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(30)


Launch = Callable[..., Application]


@pytest.fixture
def launch(tmp_path: Path):
    """Start an application of ``tests/compss/inside`` (or of another path) under COMPSs."""
    if shutil.which("runcompss") is None:
        pytest.skip("needs COMPSs: there is no runcompss on the PATH")
    if (os.cpu_count() or 1) < 2:
        pytest.skip("needs two cores")
    started = []

    def start(app: str | Path, *args: object, flags: tuple[str, ...] = ()) -> Application:
        folder = tmp_path / f"run{len(started)}"
        folder.mkdir()
        started.append(Application(folder, INSIDE / app, args, flags))
        return started[-1]

    yield start
    for application in started:
        application.kill()


@pytest.fixture
def run(launch: Launch) -> Callable[..., Done]:
    """Run an application to its end."""

    def run_it(
        app: str | Path, *args: object, seconds: float = LIMIT, flags: tuple[str, ...] = ()
    ) -> Done:
        return launch(app, *args, flags=flags).wait(seconds)

    return run_it
