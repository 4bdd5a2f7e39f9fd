"""The page of a report: what was trained, how it went, and who did what when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import pairwise
from typing import Any

from compss_train.reports.curves import panels, positions
from compss_train.reports.html.charts import chart, legend, shares_chart
from compss_train.reports.html.formatting import moment, percent
from compss_train.reports.html.lanes import is_summary, timeline
from compss_train.reports.html.markup import Markup, joined, tag
from compss_train.reports.html.tables import configuration_tables, facts, rounds_table, spent_shares, workers_table
from compss_train.reports.timeline import KINDS, Interval, Record, intervals, round_totals

REFRESH_SECONDS = 5
"""After which the report of a run that goes on is read again."""


def page(
    history: Sequence[Record], configuration: Mapping[str, Any], status: str | None = None, *, refresh: bool = False
) -> str:
    """Return the report as HTML that needs nothing else.

    ``status`` is a text such as "running"; with ``refresh`` browsers read the page again every few seconds.
    """
    title = _title(configuration)
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="refresh", content=REFRESH_SECONDS) if refresh else None,
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        Markup(f"<style>{_resource('style.css')}</style>"),
    ]
    body = [_header(title, history, configuration, status), tag("main", *_sections(history, configuration))]
    script = Markup(f"<script>{_resource('script.js')}</script>")
    return "<!DOCTYPE html>\n" + tag("html", tag("head", *head), tag("body", *body, script), lang="en") + "\n"


def _resource(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _title(configuration: Mapping[str, Any]) -> str:
    net = str((configuration.get("build") or {}).get("net", "")).partition("(")[0].strip()
    return f"Training of {net}" if net else "Training"


def _header(title: str, history: Sequence[Record], configuration: Mapping[str, Any], status: str | None) -> Markup:
    trainer, machine = (configuration.get(part) or {} for part in ("trainer", "machine"))
    told = [
        _counted(trainer["num_workers"], "worker") if "num_workers" in trainer else None,
        f"engine {trainer['engine']}" if "engine" in trainer else None,
        f"on {machine['host']}" if "host" in machine else None,
        f"from {moment(history[0]['fit_started'])}" if history and "fit_started" in history[0] else None,
    ]
    chip = None if status is None else tag("span", status, class_=f"status {status.partition(':')[0]}")
    return tag("header", tag("h1", title, chip), tag("p", " · ".join(filter(None, told))))


def _counted(number: object, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def _sections(history: Sequence[Record], configuration: Mapping[str, Any]) -> Iterator[Markup]:
    if history:
        found = intervals(history)
        yield tag("div", *facts(history, found), class_="facts-row")
        yield _section("Curves by round", tag("div", *_charts(history, found), class_="grid"))
        yield _workers(history, found)
        yield _section("Rounds", tag("div", rounds_table(history, found), class_="card"))
    else:
        yield tag("p", "No round has ended yet.", class_="note")
    if parts := list(configuration_tables(configuration)):
        yield _section("Configuration", tag("div", *parts, class_="columns"))


def _section(title: str, *content: object) -> Markup:
    return tag("section", tag("h2", title), *content)


def _charts(history: Sequence[Record], found: list[Interval]) -> Iterator[Markup]:
    xs = positions(history)
    fits = [record.get("fit_started") for record in history]
    breaks = [x for x, (one, other) in zip(xs[1:], pairwise(fits), strict=True) if one != other]
    for panel in panels(history):
        yield chart(panel, breaks)
    if found:
        spent = round_totals(found)
        none: dict[str, float] = dict.fromkeys(KINDS, 0.0)
        yield shares_chart("the workers' time (%)", xs, [spent.get(at, none) for at in range(len(xs))])


def _workers(history: Sequence[Record], found: list[Interval]) -> Markup:
    lanes = timeline(history, found)
    card = None if lanes is None else tag("div", _legend(found), lanes, class_="card")
    return _section("Workers", card, tag("div", workers_table(history, found), class_="card"))


def _legend(found: list[Interval]) -> Markup:
    shares = spent_shares(found)
    entries = legend((f"{kind} {percent(shares[kind])}", kind) for kind in KINDS)
    hint = "Drag to zoom in, double-click to zoom out."
    if is_summary(found):
        hint = "Each step shows the shares of a stretch of time: training from the bottom, merging on it. " + hint
    return joined([entries, tag("p", hint, class_="note")])
