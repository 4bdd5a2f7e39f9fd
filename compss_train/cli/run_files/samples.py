"""What a run trains and evaluates on: the sections ``[data]`` and ``[validation]`` together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compss_train.cli.run_files.data import Samples, make_data
from compss_train.cli.run_files.file import RunFile
from compss_train.cli.run_files.model import Model
from compss_train.cli.run_files.problems import Problems, unknown
from compss_train.cli.run_files.split import FRACTION, split
from compss_train.training.data_source import as_data_source


def read_data(run_file: RunFile, model: Model | None, problems: Problems) -> tuple[Samples, Samples | None] | None:
    """Return what is trained on and what is held out, or ``None`` after noting what is wrong with them."""
    before = len(problems)
    seed = 0 if model is None else model.trainer["seed"]
    samples = make_data("[data]", run_file.section("data"), problems)
    validation = run_file.section("validation")
    held_out = None
    if FRACTION in validation:
        samples, held_out = _kept(samples, validation, seed, problems)
    elif validation:
        held_out = make_data("[validation]", validation, problems)
    workers = 1 if model is None else model.num_workers
    samples = _checked(samples, "[data]", workers, problems)
    held_out = _checked(held_out, "[validation]", workers, problems)
    return (samples, held_out) if samples is not None and len(problems) == before else None


def read_held_out(run_file: RunFile, model: Model | None, problems: Problems) -> Samples | None:
    """Return what is held out, or ``None`` after noting what is wrong with it; other data are left alone."""
    validation = run_file.section("validation")
    if not validation:
        problems.add("[validation]", "the run has none, so there is nothing to evaluate on; give --data")
        return None
    if FRACTION in validation:
        return (read_data(run_file, model, problems) or (None, None))[1]
    return make_data("[validation]", validation, problems)


def _kept(
    samples: Samples | None, table: Mapping[str, Any], seed: int, problems: Problems
) -> tuple[Samples | None, Samples | None]:
    for key in table:
        if key != FRACTION:
            problems.add(f"[validation] {key}", f"{unknown(key, (FRACTION,))}, as {FRACTION} takes from [data]")
    if samples is not None:
        with problems.noting("[validation]"):
            return split(samples, table[FRACTION], seed)
    return samples, None


def _checked(samples: Samples | None, where: str, num_workers: int, problems: Problems) -> Samples | None:
    """Return the samples, noting what a trainer does not take; it cuts arrays itself, when it resumes as before."""
    if samples is None:
        return None
    with problems.noting(where):
        as_data_source(samples.x, samples.y, num_workers)
        return samples
    return None
