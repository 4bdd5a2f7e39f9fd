"""Tracebacks of errors that users' code raises inside of calls of this package."""

import sys
from collections.abc import Iterator
from types import FrameType, TracebackType

from compss_train._utils.installed import is_installed

_PACKAGE = "compss_train"


def without_inner_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without this package's frames that only lead to code of others.

    It begins in a function of this package, whose frame stays. If users' code has raised the error,
    their own frames follow; if a library has, without users' code in between, the frame that called
    the library. Errors of this package and of the standard library keep all frames.
    """
    entries = [*_entries(traceback)]
    names = [_top_module(entry.tb_frame) for entry in entries]
    outside = [
        number
        for number, name in enumerate(names)
        if name != _PACKAGE and name not in sys.stdlib_module_names
    ]
    if not outside:
        return traceback
    kept = {0, *outside}
    if all(is_installed(entries[number].tb_frame.f_code.co_filename) for number in outside):
        if names[-1] == _PACKAGE:
            return traceback
        kept.add(outside[0] - 1)
    shortened = None
    for number in sorted(kept, reverse=True):
        entry = entries[number]
        shortened = TracebackType(shortened, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return shortened


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _top_module(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0]
