"""The report of a run: one HTML file with curves, a timeline of the workers, configuration and all rounds.

It needs no network and no other file, and shows in light and dark, on a screen or printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compss_train._utils.files import write_whole
from compss_train.reports.html.page import page
from compss_train.reports.timeline import Record

__all__ = ["check_name", "page", "write"]

_SUFFIXES = (".html", ".htm")


def check_name(path: str | Path) -> None:
    """Raise ``ValueError`` unless a file's name ends as that of a web page."""
    if Path(path).suffix.lower() not in _SUFFIXES:
        raise ValueError(f"{str(path)!r}: a report is a web page; give a name that ends in .html")


def write(
    path: str | Path,
    history: Sequence[Record],
    configuration: Mapping[str, Any] | None = None,
    *,
    status: str | None = None,
    refresh: bool = False,
) -> None:
    """Write the report of a history to an HTML file, which is replaced when the new one is complete.

    Parameters
    ----------
    history:
        ``trainer.history``, or what ``History.load`` has read; may be empty.
    configuration:
        ``trainer.configuration``, or any dict that JSON can hold.
    status:
        What the run is doing, shown at the top, such as ``"running"``.
    refresh:
        Whether browsers read the file again every few seconds, for a run that goes on.

    Raises ``OSError`` where the file cannot be written; its folder must be there.
    """
    write_whole(Path(path), page(history, configuration or {}, status, refresh=refresh))
