"""Samples a second of a fit under COMPSs's runtime: ours, ours on the local engine, and dislib.pytorch."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

import _compss_fits as fits
import torch
from _common import image_source, parser, print_table, ratios, spread
from _compss import HERE, Runtime, call, skip_without_compss

LOCAL_TARGET = 0.85
DISLIB_TARGETS = {8: 1.35, 64: 4.5}
"""By the number of blocks."""
SPEED = "samples_per_second"
UNITS = {"ComputingUnits": "1", "ComputingUnitsGPUs": "0"}
"""What dislib's tasks take; a GPU is asked for in its call all the same, or it would train nothing."""

Contestant = Callable[[int], fits.Outcome]
"""Returns what it reached with a seed."""
Results = dict[str, list[fits.Outcome]]


def local(blocks: int) -> str:
    return f"ours, local, {blocks} blocks"


def compss(blocks: int) -> str:
    return f"ours, compss, {blocks} blocks"


def peer(blocks: int) -> str:
    return f"dislib, {blocks} blocks"


def contestants(options: argparse.Namespace, with_dislib: bool) -> dict[str, Contestant]:
    """Return who runs in every repetition, by name: who is compared, side by side."""

    def ours(engine: str, blocks: int, runtime: Runtime | None, seed: int) -> fits.Outcome:
        return call(fits.ours, engine, blocks, options.samples, options.epochs, seed, runtime=runtime)

    def dislib(blocks: int, seed: int) -> fits.Outcome:
        runtime = Runtime(fits.WORKERS, dislib_path(options), UNITS)
        return call(fits.dislib, blocks, options.samples, options.epochs, seed, options.copies, runtime=runtime)

    fewest = options.blocks[0]
    runs: dict[str, Contestant] = {local(fewest): partial(ours, "local", fewest, None)}
    for blocks in options.blocks:
        runs[compss(blocks)] = partial(ours, "compss", blocks, Runtime(fits.WORKERS))
        if with_dislib:
            runs[peer(blocks)] = partial(dislib, blocks)
    return runs


def dislib_path(options: argparse.Namespace) -> list[str]:
    """Return the folders that dislib and what it needs are in, beside those of this Python."""
    return [str(folder.absolute()) for folder in options.dislib]


def why_no_dislib(options: argparse.Namespace) -> str:
    """Return the error that importing dislib ends with, nothing where it can be imported.

    Tried outside the runtime, with PyCOMPSs from where ``runcompss`` takes it.
    """
    home = os.environ.get("COMPSS_HOME")
    binding = [str(Path(home, "Bindings/python/3"))] if home else []
    paths = [*dislib_path(options), *binding, os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, **UNITS, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-c", "import dislib.pytorch"]
    tried = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True)
    return tried.stderr.strip().splitlines()[-1] if tried.returncode else ""


def measure(options: argparse.Namespace, with_dislib: bool) -> Results:
    """Run all contestants one after another, again and again, so that noise meets all of them."""
    results: Results = {}
    for repetition in range(options.repetitions):
        for label, contestant in contestants(options, with_dislib).items():
            outcome = contestant(repetition)
            results.setdefault(label, []).append(outcome)
            print(f"{repetition + 1}: {label}: {outcome[SPEED]:,.0f}/s", file=sys.stderr)
    return results


def column(results: Results, label: str, name: str) -> list[float]:
    return [outcome[name] for outcome in results[label]]


def report(results: Results, blocks: Sequence[int]) -> None:
    """Print both tables."""
    rows = [
        [
            label,
            spread(column(results, label, SPEED), ",.0f"),
            spread(column(results, label, "seconds"), ".1f"),
            f"{fmean(column(results, label, 'accuracy')):.2f}",
        ]
        for label in results
    ]
    print_table("MLP under COMPSs", ["contestant", "samples/s", "fit s", "mean test accuracy"], rows)
    pairs = [(compss(blocks[0]), local(blocks[0]), f">= {LOCAL_TARGET}")]
    for number in blocks:
        target = DISLIB_TARGETS.get(number)
        pairs.append((compss(number), peer(number), f">= {target}" if target else "-"))
    rows = [
        [f"{ours} / {other}", spread(ratios(*(column(results, name, SPEED) for name in (ours, other)))), target]
        for ours, other, target in pairs
        if other in results
    ]
    print_table("Targets", ["measure", "median (min to max)", "target"], rows)


def main() -> None:
    options_parser = parser(__doc__, repetitions=3, epochs=5)
    options_parser.add_argument("--samples", type=int, default=60_000, help="training images")
    options_parser.add_argument("--blocks", type=int, nargs="+", default=list(DISLIB_TARGETS), help="of the images")
    options_parser.add_argument(
        "--dislib",
        type=Path,
        nargs="+",
        default=[],
        metavar="FOLDER",
        help="a checkout of dislib, and folders of packages that it needs, where they are not installed",
    )
    options_parser.add_argument(
        "--copies", action="store_true", help="make each of dislib's blocks a tensor of its own before the fit"
    )
    options = options_parser.parse_args()
    skip_without_compss()
    if options.quick:
        # A task of dislib's takes half a second, however small: 64 blocks are not quick.
        options.repetitions, options.epochs, options.samples, options.blocks = 1, 2, 6_400, [2, 8]
    print(f"{image_source()}: {options.samples} of them, {options.epochs} epochs, {fits.BATCH} a batch")
    print(f"torch {torch.__version__}; {fits.WORKERS} workers, a thread each; merged every epoch; MLP")
    if reason := why_no_dislib(options):
        print(f"SKIPPED: dislib cannot be imported ({reason}); name a checkout with --dislib FOLDER")
    report(measure(options, with_dislib=not reason), options.blocks)


if __name__ == "__main__":
    main()
