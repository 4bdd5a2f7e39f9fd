"""The report of a run: one HTML file with curves, a timeline of the workers, the configuration and all rounds.

It needs no network and no other file, and suits light and dark screens and printing. Needs the extra ``report``.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from compss_train._utils.files import write_atomic
from compss_train.reports.html.page import comparison_page, load_template, page
from compss_train.reports.records import Record

__all__ = ["check_name", "comparison_page", "is_page", "load_template", "page", "write"]

_SUFFIXES = (".html", ".htm")


def is_page(path: str | Path) -> bool:
    """Return whether ``path`` ends in .html or .htm."""
    return Path(path).suffix.lower() in _SUFFIXES


def check_name(path: str | Path) -> None:
    """Raise ``ValueError`` unless ``path`` ends in .html or .htm."""
    if not is_page(path):
        raise ValueError(f"{str(path)!r}: a report is an HTML file; give a name that ends in .html")


def write(
    path: str | Path,
    history: Sequence[Record],
    configuration: Mapping[str, Any] | None = None,
    *,
    status: str | None = None,
    refresh: bool = False,
) -> None:
    """Write the report of a history to an HTML file, atomically.

    Parameters
    ----------
    history:
        ``trainer.history``, or a history read by ``History.load``; may be empty.
    configuration:
        ``trainer.configuration``, or any dict that JSON can represent.
    status:
        The state of the run, shown at the top, such as ``"running"``.
    refresh:
        Whether browsers reload the file every few seconds, for a running fit.

    Raises ``OSError`` if the file cannot be written; its folder must exist. Raises ``ModuleNotFoundError`` without
    the extra ``report``.
    """
    trace = _trace_link(Path(path), configuration or {})
    write_atomic(Path(path), page(history, configuration or {}, status, refresh=refresh, trace=trace))


def _trace_link(path: Path, configuration: Mapping[str, Any]) -> str | None:
    """Return the link to the trace that the fit has written, ``None`` if there is none (yet)."""
    profile = (configuration.get("fit") or {}).get("profile")
    if profile is None:
        return None
    moved = path.parent / Path(profile).name  # with the report, from where it was written
    found = next((place for place in (Path(profile), moved) if place.exists()), None)
    return None if found is None else quote(os.path.relpath(found, path.parent))
