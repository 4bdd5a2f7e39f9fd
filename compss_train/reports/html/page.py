"""The pages of reports, rendered from the templates of this package."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from compss_train._utils.imports import import_optional
from compss_train.reports.comparison import MISSING, ComparedRun, comparison_panels, comparison_table, grouped
from compss_train.reports.curves import Axis, panels
from compss_train.reports.formatting import percent, timestamp
from compss_train.reports.html.tables import CellTable, activity_shares, key_figures, rounds_table, workers_table
from compss_train.reports.records import Record
from compss_train.reports.timeline import KINDS, worker_intervals

REFRESH_SECONDS = 5
"""Seconds after which browsers reload the report of a running fit."""


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
    from compss_train.reports.html.charts import chart_of

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
    from compss_train.reports.html.charts import chart_of
    from compss_train.reports.html.timeline_chart import timeline_chart

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
