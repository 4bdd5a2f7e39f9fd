"""A solver's program: it ends with this process, and its last lines explain its failure."""

import os
import selectors
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, cast

from compss_train._utils import Closable
from compss_train.online import guard, solver_output

_TAIL_BYTES = 2000
"""How much of the end of a program's output is kept."""
_TAIL_LINES = 10
"""Maximum number of lines of it in the message of a failure."""
_MAX_NAME = 60
"""Maximum length of the command in that message."""
_STANDARD_OUTPUT = 1
_STANDARD_ERROR = 2


class NotStartedError(ChildProcessError):
    """A command, or one that it runs, cannot be started; it would fail again."""


class SolverProcess(Closable):
    """Runs a command through ``guard``.

    All its processes end when this object is closed or this process dies.

    ``environment`` is added to that of this process. The command writes its output and errors to
    the file ``log``. Without one, this process writes them to its own standard output and error; if
    ``piped``, the command's standard output can be read from ``output`` instead.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        folder: str | None = None,
        *,
        piped: bool = False,
        log: Path | None = None,
    ) -> None:
        text = shlex.join(command)
        self.name = text if len(text) <= _MAX_NAME else f"{text[: _MAX_NAME - 3]}..."
        self._log = log
        with ExitStack() as stack:
            # At the end of the file, which the ranks of a launcher may open, too.
            file = None if log is None else stack.enter_context(log.open("ab"))
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if file is None else file,
                stderr=subprocess.PIPE if file is None else subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                cwd=folder,
                start_new_session=True,
            )
        self._input: IO[bytes] = cast("IO[bytes]", self._process.stdin)
        self.output: IO[bytes] = cast("IO[bytes]", self._process.stdout)
        self._tail = b""
        copied: dict[IO[bytes], int] = {}
        if self._process.stderr is not None:
            copied[self._process.stderr] = _STANDARD_ERROR
        if self._process.stdout is not None and not piped:
            copied[self._process.stdout] = _STANDARD_OUTPUT
        self._threads = [
            threading.Thread(
                target=self._copy, args=(copied,), name="solver's output", daemon=True
            ),
            threading.Thread(target=self._end_orphans, name="solver's end", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _copy(self, copied: Mapping[IO[bytes], int]) -> None:
        """Copy what the program writes to pipes to files until it ends; keep the last of it."""
        with selectors.DefaultSelector() as selector:
            for pipe, descriptor in copied.items():
                selector.register(pipe, selectors.EVENT_READ, descriptor)
            while selector.get_map():
                for key, _ in selector.select():
                    text = os.read(key.fd, 2**16)
                    if not text:
                        selector.unregister(key.fileobj)
                        continue
                    self._tail = (self._tail + text)[-_TAIL_BYTES:]
                    with suppress(OSError):  # nobody reads it any more
                        os.write(key.data, text)

    def _end_orphans(self) -> None:
        """End what the guard has left when it has ended: if it was killed, it could not."""
        self._process.wait()
        while orphans := self._session_members():
            for process in orphans:
                with suppress(OSError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(guard.TICK)

    def _session_members(self) -> list[int]:
        """Return the processes of the guard's session."""
        return [
            process
            for process, (_, _, session) in guard.processes().items()
            if session == self._process.pid
        ]

    def status(self, timeout: float | None = 0.0) -> int | None:
        """Return the exit status, negative for a signal; ``None`` if it is not there in time."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout)
        return None

    def failure(self, what: str = "") -> ChildProcessError:
        """End the program; return its error: ``what`` it did or its status, and its last lines."""
        self.close()
        status = self._process.returncode
        if not what and status < 0:
            what = f"ended by {signal.Signals(-status).name}"
        elif not what:
            what = f"ended with status {status}"
        kind = NotStartedError if status == guard.NOT_STARTED else ChildProcessError
        return kind("\n  ".join([f"{self.name} {what}", *self.last_lines()]))

    def last_lines(self) -> list[str]:
        """Return the last lines of the program's output, and where all of it is if that is known.

        Of ranks that write files of their own, those of the file that was written last.
        """
        if self._log is None:
            return _last_lines_of(self._tail)
        lines = []
        for path in solver_output.newest_files(self._log):
            lines += _last_lines_of(solver_output.end_of(path, _TAIL_BYTES))
            lines.append(f"(output: {path})")
        return lines

    def close(self) -> None:
        """End the program with all its processes, unless it has ended; wait for that."""
        self._input.close()
        self._process.wait()
        for thread in self._threads:
            thread.join()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


def _last_lines_of(text: bytes) -> list[str]:
    return text.decode(errors="replace").rstrip().splitlines()[-_TAIL_LINES:]
