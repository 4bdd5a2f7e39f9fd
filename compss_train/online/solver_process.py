"""A solver's program: it ends with this process, and the last lines that it writes explain its
failure.
"""

import os
import selectors
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from compss_train._utils import Closable
from compss_train.online import guard

_TAIL_BYTES = 2000
_TAIL_LINES = 10
"""How much of a program's output goes into the message of its failure, at most."""
_MAX_NAME = 60


class NotStartedError(ChildProcessError):
    """A command, or one that it runs, cannot be started; it would fail again."""


class SolverProcess(Closable):
    """Runs a command through ``guard``: all its processes end when this object is closed or this
    process dies.

    ``environment`` is added to that of this process. This process writes what the command does to
    its own standard output and error; if ``piped``, the command's standard output can be read from
    ``output`` instead.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        folder: str | None = None,
        *,
        piped: bool = False,
    ) -> None:
        text = shlex.join(command)
        self.name = text if len(text) <= _MAX_NAME else f"{text[: _MAX_NAME - 3]}..."
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            cwd=folder,
            start_new_session=True,
        )
        pipes: Any = self._process.stdin, self._process.stdout, self._process.stderr
        self.output: IO[bytes]
        self._input, self.output, self._error = pipes
        self._tail = b""
        copied = {self._error: 2} | ({} if piped else {self.output: 1})
        self._threads = [
            threading.Thread(
                target=self._copy, args=(copied,), name="solver's output", daemon=True
            ),
            threading.Thread(target=self._end_rest, name="solver's end", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _copy(self, copied: Mapping[Any, int]) -> None:
        """Copy what the program writes until it ends, and keep the last of it."""
        with selectors.DefaultSelector() as selector:
            for pipe, target in copied.items():
                selector.register(pipe, selectors.EVENT_READ, target)
            while selector.get_map():
                for key, _ in selector.select():
                    if text := os.read(key.fd, 2**16):
                        self._tail = (self._tail + text)[-_TAIL_BYTES:]
                        with suppress(OSError):  # nobody reads it any more
                            os.write(key.data, text)
                    else:
                        selector.unregister(key.fileobj)

    def _end_rest(self) -> None:
        """End what is left when the guard has ended: if it was killed, it could not."""
        self._process.wait()
        while left := [
            pid for pid, (*_, leader) in guard.processes().items() if leader == self._process.pid
        ]:
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(guard.TICK)

    def status(self, timeout: float | None = 0.0) -> int | None:
        """Return the exit status, negative for a signal, waiting so many seconds; ``None`` if it
        has not ended.
        """
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout)
        return None

    def failure(self, what: str = "") -> ChildProcessError:
        """End the program; return its error: ``what`` it did, or else its status, and its last
        lines.
        """
        self.close()
        status = self._process.returncode
        if not what:
            what = (
                f"ended by {signal.Signals(-status).name}"
                if status < 0
                else (f"ended with status {status}")
            )
        lines = self._tail.decode(errors="replace").rstrip().splitlines()[-_TAIL_LINES:]
        kind = NotStartedError if status == guard.NOT_STARTED else ChildProcessError
        return kind("\n  ".join([f"{self.name} {what}", *lines]))

    def close(self) -> None:
        """End the program with all its processes, unless it has ended; wait for that."""
        self._input.close()
        self._process.wait()
        for thread in self._threads:
            thread.join()
        self.output.close()
        self._error.close()
