"""``compss-train watch``: what a study does that trains while simulations run."""

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from compss_train._utils.validation import check_seconds
from compss_train.cli.reports import print_json
from compss_train.reports import formatting
from compss_train.reports.study_state import (
    KILLED,
    RUNNING,
    StudyState,
    read_study_state,
    study_file,
)

UNHEALTHY = 1
"""Exit code for a study that was killed, has failed, or has written nothing for long."""


def watch(options: argparse.Namespace) -> int:
    """Print what a study does, once or again and again until it has ended."""
    every = None if options.every is None else check_seconds("--every", options.every)
    file = study_file(options.run)
    while True:
        state = read_study_state(file)
        if options.json:
            present = {"state": state.present_state, "stale": state.is_stale, "age": state.age}
            print_json(asdict(state) | present)
        else:
            print("\n".join(map(formatting.printable, _lines(str(file.parent), state))))
        if every is None or state.present_state != RUNNING:
            break
        print(flush=True)
        time.sleep(every)
    present_state = state.present_state
    has_failed = present_state == KILLED or present_state.startswith("failed")
    return UNHEALTHY if has_failed or state.is_stale else 0


def _lines(name: str, state: StudyState) -> list[str]:
    seconds = state.written - state.started
    age = formatting.duration(state.age)
    heading = f"{name}: {state.present_state}"
    if state.is_stale:
        heading += f", as far as known: nothing was written for {age}, so it may have been killed"
    elif state.present_state == KILLED:
        heading += f" {age} ago"
    heading += f" (process {state.process} on {state.node}, {formatting.duration(seconds)}"
    heading += f", from {state.resumed_from})" if state.resumed_from else ")"
    counts = ", ".join(
        f"{'?' if number is None else f'{number:,}'} {name}"
        for name, number in state.inputs.items()
    )
    speeds = [
        f"{formatting.number(speed)} {what} a second"
        for speed, what in (
            (state.received_per_second, "received"),
            (state.trained_per_second, "trained"),
        )
        if speed is not None
    ]
    samples = [f"{state.received:,} received", f"{state.buffer:,} in buffers", *speeds]
    lines = [heading, f"inputs: {counts}", f"samples: {', '.join(samples)}"]
    if state.failed:
        lines.append(f"given up: {', '.join(state.failed)}")
    for rows in (state.workers, state.senders, state.simulations):
        lines += _table(rows)
    return lines


def _table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return rows below the names of their columns, all aligned."""
    if not rows:
        return []
    cells = [[_cell(value) for value in row.values()] for row in rows]
    return ["", *(line.rstrip() for line in formatting.columns([[*rows[0]], *cells]))]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.0f}" if isinstance(value, float) else str(value)
