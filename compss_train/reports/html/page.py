"""The page of a report, rendered from the templates of this package."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import Any

from compss_train._utils.imports import import_optional
from compss_train.reports.comparison import MISSING, ComparedRun, comparison_panels, comparison_table, grouped
from compss_train.reports.curves import Axis, panels, positions
from compss_train.reports.formatting import percent, timestamp
from compss_train.reports.html import charts
from compss_train.reports.html.downsampling import limit_curves
from compss_train.reports.html.tables import Table, activity_shares, key_figures, rounds_table, workers_table
from compss_train.reports.html.timeline_chart import is_binned, timeline_chart
from compss_train.reports.records import Record
from compss_train.reports.timeline import KINDS, Interval, round_totals, worker_intervals

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
    make = load_template("parts.html").module
    title = _title(configuration)
    run = _run(history) if history else None
    known = {part: value for part, value in configuration.items() if value is not None}
    parts = {
        "head": make.head(title, status, _subtitle(history, configuration)),
        "figures": make.figures(run),
        "curves": make.curves(run["charts"], "round") if run else "",
        "workers": make.workers(run, trace) if run else "",
        "rounds": make.rows("Rounds", run["rounds"]) if run else "",
        "configuration": make.configuration(known) if known else "",
    }
    return _page_of(title, parts, refresh_seconds=REFRESH_SECONDS if refresh else None)


def _page_of(title: str, parts: Mapping[str, str], *, refresh_seconds: float | None = None) -> str:
    text: str = load_template("page.html").render(
        title=title,
        head=parts["head"],
        parts={name: part for name, part in parts.items() if name != "head"},
        refresh_seconds=refresh_seconds,
        style=_resource("style.css"),
        script=_resource("script.js"),
    )
    return text


def comparison_page(runs: Sequence[ComparedRun], against: Axis = "round") -> str:
    """Return a page that compares runs, as HTML that needs no other file."""
    make = load_template("parts.html").module
    rows = comparison_table(runs)
    headings = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(headings, [[row.get(name, MISSING) for name in headings] for row in rows])
    compared = [charts.line_chart(panel, against=against) for panel in comparison_panels(grouped(runs), against)]
    title = f"{len(runs)} runs"
    parts = {
        "head": make.head(title, None, " · ".join(run.name for run in runs)),
        "runs": make.rows("Runs", table),
        "curves": make.curves(compared, against),
    }
    return _page_of(title, parts)


@cache
def load_template(name: str = "page.html") -> Any:
    """Return a compiled template; raise ``ModuleNotFoundError`` without the extra ``report``."""
    jinja2 = import_optional("jinja2", extra="report", needed_by="the HTML report")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["timestamp"] = timestamp
    environment.globals.update(
        chart_width=charts.WIDTH,
        chart_height=charts.HEIGHT,
        chart_left=charts.LEFT,
        chart_right=charts.WIDTH - charts.RIGHT,
        chart_top=charts.TOP,
        chart_bottom=charts.HEIGHT - charts.BOTTOM,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment.get_template(name)


def _resource(name: str) -> str:
    return files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def _title(configuration: Mapping[str, Any]) -> str:
    net = str((configuration.get("build") or {}).get("net", "")).partition("(")[0].strip()
    return f"Training of {net}" if net else "Training"


def _subtitle(history: Sequence[Record], configuration: Mapping[str, Any]) -> str:
    trainer, machine = (configuration.get(part) or {} for part in ("trainer", "machine"))
    parts = [
        _plural(trainer["num_workers"], "worker") if "num_workers" in trainer else None,
        f"engine {trainer['engine']}" if "engine" in trainer else None,
        f"on {machine['host']}" if "host" in machine else None,
        f"from {timestamp(history[0]['fit_started'])}" if history and "fit_started" in history[0] else None,
    ]
    return " · ".join(filter(None, parts))


def _plural(number: object, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _run(history: Sequence[Record]) -> dict[str, Any]:
    """Return what the template shows of a history that is not empty."""
    intervals = worker_intervals(history)
    shares = activity_shares(intervals)
    return {
        "key_figures": list(key_figures(history, intervals)),
        "charts": list(_charts(history, intervals)),
        "timeline": timeline_chart(history, intervals),
        "timeline_legend": [(f"{kind} {percent(shares[kind])}", kind) for kind in KINDS],
        "timeline_is_binned": is_binned(intervals),
        "workers": workers_table(history, intervals),
        "rounds": rounds_table(history, intervals),
    }


def _charts(history: Sequence[Record], intervals: list[Interval]) -> Iterator[charts.Chart]:
    xs = positions(history)
    fits = [record.get("fit_started") for record in history]
    breaks = [x for x, (one, other) in zip(xs[1:], pairwise(fits), strict=True) if one != other]
    for panel in panels(history):
        yield charts.line_chart(limit_curves(panel), breaks)
    if intervals:
        seconds = round_totals(intervals)
        none: dict[str, float] = dict.fromkeys(KINDS, 0.0)
        yield charts.shares_chart(
            "the workers' time (%)", xs, [seconds.get(index, none) for index in range(len(xs))]
        )
