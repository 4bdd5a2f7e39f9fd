"""How the main program of a COMPSs application ends."""

from __future__ import annotations

import ctypes
from functools import cache


@cache
def exit_at_once() -> None:
    """Have the process end without C++ destructors once ``exit`` is called; a second call does nothing.

    When COMPSs gives an application up, the JVM calls ``exit`` while Python's main thread waits inside the binding
    and holds the interpreter's lock. A destructor of libtorch then waits for that lock, for ever. In a normal exit
    Python has finalized by then, and the JVM has run its shutdown hooks; C's streams are closed here, and the exit
    code stays. What C libraries loaded before have registered for their end is not run. Where libc has no
    ``on_exit`` (it is glibc's), nothing changes.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):
        libc.on_exit(libc._exit, None)
        libc.on_exit(libc.fcloseall, None)  # the last to be registered is the first to run
