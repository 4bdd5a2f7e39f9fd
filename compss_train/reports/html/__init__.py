"""The report of a run: one HTML file with curves, a timeline of the workers, the configuration and all rounds.

It needs no network and no other file, and suits light and dark screens and printing. Needs the extra ``report``.
"""

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from compss_train._utils.files import write_atomic
from compss_train._utils.imports import import_optional
from compss_train.reports.comparison import MISSING, ComparedRun, comparison_panels, comparison_table, grouped
from compss_train.reports.curves import Axis, panels
from compss_train.reports.formatting import percent, timestamp
from compss_train.reports.html.tables import CellTable, activity_shares, key_figures, rounds_table, workers_table
from compss_train.reports.records import Record
from compss_train.reports.timeline import KINDS, worker_intervals

REFRESH_SECONDS = 5
"""Seconds after which browsers reload the report of a running fit."""


def is_page(path: str | Path) -> bool:
    """Return whether ``path`` ends in .html or .htm."""
    return Path(path).suffix.lower() in (".html", ".htm")


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


def page(
    history: Sequence[Record],
    configuration: Mapping[str, Any],
    status: str | None = None,
    *,
    refresh: bool = False,
    trace: str | None = None,
) -> str:
    """Return the report as HTML that needs no other file.

    ``status`` is a text such as "running"; with ``refresh`` browsers reload the page every few seconds. ``trace``
    links to the trace of a worker's round.
    """
    net = str((configuration.get("build") or {}).get("net", "")).partition("(")[0].strip()
    text: str = load_template("report.html").render(
        title=f"Training of {net}" if net else "Training",
        status=status,
        subtitle=_subtitle(history, configuration),
        refresh_seconds=REFRESH_SECONDS if refresh else None,
        run=_run(history) if history else None,
        trace=trace,
        configuration={part: value for part, value in configuration.items() if value is not None},
    )
    return text


def comparison_page(runs: Sequence[ComparedRun], against: Axis = "round") -> str:
    """Return a page that compares runs, as HTML that needs no other file."""
    template = load_template("comparison.html")
    from compss_train.reports.plots import chart_of

    rows = comparison_table(runs)
    headings = list(dict.fromkeys(name for row in rows for name in row))
    text: str = template.render(
        title=f"{len(runs)} runs",
        status=None,
        subtitle=" · ".join(run.name for run in runs),
        refresh_seconds=None,
        runs=CellTable(headings, [[row.get(name, MISSING) for name in headings] for row in rows]),
        charts=[chart_of(panel, against) for panel in comparison_panels(grouped(runs), against)],
        against=against,
    )
    return text


@cache
def load_template(name: str = "report.html") -> Any:
    """Return a compiled template; raise ``ModuleNotFoundError`` without the extra ``report``."""
    jinja2, _ = (
        import_optional(module, extra="report", needed_by="the HTML report") for module in ("jinja2", "matplotlib")
    )
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["timestamp"] = timestamp
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment.get_template(name)


def _subtitle(history: Sequence[Record], configuration: Mapping[str, Any]) -> str:
    trainer, machine = (configuration.get(part) or {} for part in ("trainer", "machine"))
    number = trainer.get("num_workers")
    parts = [
        None if number is None else f"{number} worker{'s' * (number != 1)}",
        f"engine {trainer['engine']}" if "engine" in trainer else None,
        f"on {machine['host']}" if "host" in machine else None,
        f"from {timestamp(history[0]['fit_started'])}" if history and "fit_started" in history[0] else None,
    ]
    return " · ".join(filter(None, parts))


def _run(history: Sequence[Record]) -> dict[str, Any]:
    """Return what the template shows of a history that is not empty."""
    from compss_train.reports.html.timeline_chart import timeline_chart
    from compss_train.reports.plots import chart_of

    intervals = worker_intervals(history)
    shares = activity_shares(intervals)
    return {
        "key_figures": list(key_figures(history, intervals)),
        "charts": [chart_of(panel) for panel in panels(history, intervals=intervals)],
        "timeline": timeline_chart(history, intervals),
        "timeline_legend": [(f"{kind} {percent(shares[kind])}", kind) for kind in KINDS],
        "workers": workers_table(history, intervals),
        "rounds": rounds_table(history, intervals),
    }
