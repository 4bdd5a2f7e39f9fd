"""How much many workers learn: accuracies after some epochs, times to an accuracy, and what merging costs.

Groups of fits run one after another, and each result is appended to a file, so that a measurement can be stopped
and continued, and run in two processes (``--part 0/2`` and ``--part 1/2``). ``--report`` prints the tables of the
given groups instead, with the same options as they were measured with.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch
from _common import NETWORKS, image_source, parser
from _learning_cases import GROUPS, MERGES, OPTIMIZERS, OURS, Case
from _learning_results import Result, ResultsFile

IS_OURS = (OURS, MERGES)


def parsed() -> argparse.Namespace:
    """Return the options of the command line."""
    options_parser = parser(__doc__, repetitions=5, epochs=8)
    add = options_parser.add_argument
    add("groups", nargs="*", type=_group, default=["cost"], metavar="GROUP", help=f"of {', '.join(GROUPS)}")
    add("--results", type=Path, default=Path("build/learning.jsonl"), help="file that results are appended to")
    add("--part", default="0/1", help="which part of the fits, of how many, this process runs")
    add("--choose", action="store_true", help="hold out training images and leave the test images alone")
    add("--samples", type=int, default=60_000, help="training images")
    add("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    add("--workers", nargs="+", type=int, default=[2, 8, 32, 64])
    add("--engine", choices=("serial", "local"), default="serial", help="of fits whose time does not matter")
    add("--report", nargs="+", type=Path, metavar="FILE", help="print the tables of these files")
    add("--plot", type=Path, metavar="IMAGE", help="draw the curves of the files given by --report")
    grid = options_parser.add_argument_group("the group time")
    grid.add_argument("--batch-sizes", nargs="+", type=int, default=[25, 50, 100])
    grid.add_argument("--learning-rates", nargs="+", type=float, default=[0.05, 0.1])
    grid.add_argument("--schedule", choices=("constant", "cosine"), default="constant")
    custom = options_parser.add_argument_group("the group custom")
    custom.add_argument("--options", nargs="+", default=[], help="options of fit as JSON, each a setting")
    custom.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=["sgd"])
    custom.add_argument("--optimizer-options", default="{}", help="JSON that replaces options of the optimizer")
    options = options_parser.parse_args()
    if options.quick:
        options.repetitions, options.epochs, options.samples = 1, 1, 2_400
        options.workers = options.workers[:2]
    return options


def _group(name: str) -> str:
    if name not in GROUPS:
        raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(GROUPS)}")
    return name


def cases_of(options: argparse.Namespace) -> dict[str, Case]:
    """Return the cases of all groups by their keys, each once."""
    return {case.key: case for name in options.groups for case in GROUPS[name](options)}


def part_of(cases: Sequence[Case], part: str) -> list[Case]:
    """Return the cases of part "n/m": every m-th, so that parts take about as long."""
    number, _, parts = part.partition("/")
    return list(cases)[int(number) :: int(parts)]


def runnable(cases: Sequence[Case]) -> list[Case]:
    """Return the cases that can run here; end if one has an option of ``fit`` that this version lacks."""
    from _learning_ours import missing_options  # not at the top: the processes of peers import this module too
    from _learning_peers import is_installed

    for case in cases:
        if case.contestant in IS_OURS and (missing := missing_options(case)):
            raise SystemExit(f"{case.label}: fit of this version of compss_train has no {', '.join(missing)}")
    for contestant in {case.contestant for case in cases if not is_installed(case.contestant)}:
        print(f"{contestant} is not installed: left out", file=sys.stderr)
    return [case for case in cases if is_installed(case.contestant)]


def measure(cases: Sequence[Case], file: ResultsFile) -> None:
    """Run the cases that the file does not have."""
    done = file.load()
    missing = [case for case in runnable(cases) if case.key not in done]
    print(f"{len(cases)} fits, {len(cases) - len(missing)} of them done or left out", file=sys.stderr)
    for number, case in enumerate(missing, 1):
        result = run(case)
        file.append(case, result)
        print(f"{number}/{len(missing)}: {case.label}: {outcome(result)}", file=sys.stderr, flush=True)


def outcome(result: Result) -> str:
    if result.merge_seconds:
        return f"{1000 * median(result.merge_seconds):.0f} ms a merge"
    return "diverged" if result.diverged else f"{result.accuracy:.2f}%"


def run(case: Case) -> Result:
    """Run one case."""
    import _learning_ours
    import _learning_peers

    return _learning_ours.run(case) if case.contestant in IS_OURS else _learning_peers.run(case)


def print_reports(options: argparse.Namespace) -> None:
    """Print the tables of the groups, and draw the plot if it is wanted."""
    from _learning_plot import plot
    from _learning_report import report

    found = {key: result for path in options.report for key, result in ResultsFile(path).load().items()}
    for name in options.groups:
        report(name, GROUPS[name](options), found)
    if options.plot is not None:
        plot(GROUPS["curves"](options), found, options.plot)


def main() -> None:
    options = parsed()
    print(f"{image_source()}: {options.samples} of them, {options.epochs} epochs; torch {torch.__version__}")
    if options.report is None:
        torch.set_num_threads(1)
        measure(part_of(list(cases_of(options).values()), options.part), ResultsFile(options.results))
        options.report = [options.results]
    print_reports(options)


if __name__ == "__main__":
    main()
