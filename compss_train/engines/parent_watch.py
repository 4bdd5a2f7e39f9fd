"""What lets a new process end with the one that started it, even while it imports torch.

Imports next to nothing itself: a process that its parent does not end any more is to notice soon.
"""

import os
import pickle
import threading
from typing import Any

CHECK_SECONDS = 0.5
"""How often a process checks that its parent still runs: a killed parent cannot end it."""


class ParentWatch:
    """Ends this process, from a thread, when ``parent`` has ended; until ``stop``."""

    def __init__(self, parent: int) -> None:
        self._parent = parent
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="parent watch", daemon=True)
        self._thread.start()

    @property
    def parent_runs(self) -> bool:
        """Whether the parent still runs."""
        return os.getppid() == self._parent

    def _run(self) -> None:
        while not self._stopped.wait(CHECK_SECONDS):
            if not self.parent_runs:
                os._exit(1)

    def stop(self) -> None:
        """End the thread: a process that forks has one thread only."""
        self._stopped.set()
        self._thread.join()


def call_with_parent(parent: int, pickled: bytes, *args: Any) -> None:
    """Call a pickled function with a watch of the parent, its pickled arguments, and ``args``.

    The watch begins before they are unpickled, which imports their modules.
    """
    watch = ParentWatch(parent)
    function, first_args = pickle.loads(pickled)
    function(watch, *first_args, *args)
