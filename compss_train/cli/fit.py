"""``compss-train fit``: trains as a TOML file says, or prints its keys or the plan of a run."""

import argparse
import json
import re
import sys
import traceback
from collections.abc import Mapping
from importlib.resources import files
from inspect import Parameter, formatannotation
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compss_train import callbacks
from compss_train.cli import run_files
from compss_train.cli.run_files import data, objects, training, trust
from compss_train.data import FileDataset
from compss_train.reports.formatting import counted
from compss_train.reports.records import measured_names
from compss_train.trainer import DistributedTrainer
from compss_train.training.data_source import as_data_source

MODULES = re.compile(r"\b(\w+\.)+")
"""The names of modules in an annotation."""
FAILED = 1
"""Exit code if training fails after it has started."""
UNFINISHED = 75
"""Exit code after ``max_time``: EX_TEMPFAIL of sysexits.h, for what should be tried again later."""


def fit(options: argparse.Namespace) -> int:
    """Train; return 0 when done, 1 if training failed, 75 after ``max_time``."""
    if options.example or options.keys:
        example = files("compss_train.cli").joinpath("example.toml")
        print(example.read_text(encoding="utf-8") if options.example else format_keys(), end="")
        return 0
    if options.file is None:
        raise ValueError("name a TOML file; compss-train fit --example prints one to start with")
    run_file = run_files.read_run_file(
        options.file, options.settings, "compss-train fit --example prints one"
    )
    with trust.working_directory(run_file):
        run = training.prepare_run(run_file, resume=options.resume, overwrite=options.overwrite)
        return _dry_run(run) if options.dry_run else _train(run, show_traceback=options.traceback)


def _dry_run(run: training.TrainingRun) -> int:
    with run.trainer as trainer:
        plan = format_plan(run, trainer)
        try:
            trainer.check_fit(**run.arguments)
        except Exception as error:  # the network and other code of the user may raise any kind
            message = f"the fit would fail: {run_files.format_exception(error)}"
            message = run_files.append_notes(message, error)
            print(f"compss-train fit: {message}", file=sys.stderr)
            return 2
    print(plan)
    return 0


def _train(run: training.TrainingRun, *, show_traceback: bool) -> int:
    try:
        trainer = training.train(run)
    except run_files.RunFileError:
        raise
    except (KeyboardInterrupt, SystemExit) as error:
        message = run_files.append_notes(_format_interrupted(run), error)
        print(f"compss-train fit: {message}", file=sys.stderr)
        raise
    except Exception as error:
        lines = [_format_interrupted(run)]
        if show_traceback:
            traceback.print_exc()
        else:
            lines[0] += "; --traceback shows where it failed"
        if isinstance(error, ModuleNotFoundError):
            flag = f"runcompss --pythonpath={run.file.home}"
            lines.insert(0, f"Workers of COMPSs find modules by a flag: {flag}")
        message = run_files.append_notes(run_files.format_exception(error), error, *lines)
        print(f"compss-train fit: training failed: {message}", file=sys.stderr)
        return FAILED
    print(_format_result(trainer, run.folder))
    return UNFINISHED if trainer.stopped == "max_time" else 0


def spirals(
    samples: int = 3000, classes: int = 3, noise: float = 0.1, seed: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the data of ``example.toml``: points on arms of a spiral, and their arms.

    The points have the shape (samples, 2), their arms (samples,).
    """
    random = np.random.default_rng(seed)
    arms = random.integers(classes, size=samples)
    radii = random.uniform(size=samples)
    angles = 2 * np.pi * (arms / classes + radii) + noise * random.normal(size=samples)
    points = (radii * np.stack([np.cos(angles), np.sin(angles)])).T
    return points.astype(np.float32), arms


def format_keys() -> str:
    """Return all keys of all sections, with their defaults and their types in Python."""
    blocks = []
    for title, keys in _sections().items():
        lines = [title, *(_format_key(name, key) for name, key in keys.items())]
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _sections() -> dict[str, Mapping[str, Parameter]]:
    """Return the keys of each section and table, by its title."""
    call = {objects.CALL: Parameter("name", Parameter.KEYWORD_ONLY, annotation='"module:name"')}
    function = {**call, "blocks": data.ARRAYS["blocks"]}
    fraction = Parameter(data.FRACTION, Parameter.KEYWORD_ONLY, annotation=float)
    sections: dict[str, Mapping[str, Parameter]] = {
        "[trainer]": training.TRAINER,
        "[network], with arguments of what is called as other keys": call,
        "[data] and [validation], of files": data.FILES,
        "[data] and [validation], of arrays": data.ARRAYS,
        "[data] and [validation], of a function, with its arguments as other keys": function,
        "[validation], of a part of [data]": {data.FRACTION: fraction},
        "[build]": training.BUILD,
        "[fit]": training.FIT,
        "[output]": training.OUTPUT,
    }
    for name, kind in objects.TABLES.items():
        sections[f"{name}, a table"] = objects.parameters_of(kind)
    for name, writer in training.WRITERS.items():
        sections[f"{name}, a table"] = training.callback_options(writer.callback)
    stopping = training.callback_options(callbacks.EarlyStopping)
    return {**sections, "early_stopping, a table": stopping}


def _format_key(name: str, key: Parameter) -> str:
    default = "(required)"
    if key.default is not Parameter.empty:
        value = objects.NONE if key.default is None else key.default
        default = f"= {json.dumps(value, default=str)}"
    kind = key.annotation if isinstance(key.annotation, str) else formatannotation(key.annotation)
    return f"  {name} {default}".ljust(40) + f"# {MODULES.sub('', kind)}"


def format_plan(run: training.TrainingRun, trainer: DistributedTrainer) -> str:
    """Return what a run would do, for ``--dry-run``."""
    net = trainer.model()
    num_parameters = sum(parameter.numel() for parameter in net.parameters())
    arguments = run.arguments
    validation = "none"
    if arguments.get("validation_data") is not None:
        validation = _format_size(trainer.num_workers, *arguments["validation_data"])
    engine = trainer.configuration["trainer"]["engine"]
    fit_options = run.file.section("fit")
    fit_options.pop("callbacks", None)
    output = str(run.folder.path)
    if run.resume:
        has_results = run.folder.has_results
        output += ", resumed" if has_results else ", which holds no run to resume"
    plan = {
        "network": f"{type(net).__name__}, {num_parameters:,} parameters",
        "data": _format_size(trainer.num_workers, arguments["x"], arguments["y"]),
        "validation": validation,
        "workers": f"{trainer.num_workers} ({engine}), {counted(trainer.threads, 'thread')} each",
        "seed": str(trainer.seed),
        "build": _format_options(run.file.section("build")),
        "fit": _format_options(fit_options),
        "callbacks": ", ".join(type(callback).__name__ for callback in arguments["callbacks"]),
        "output": output,
    }
    width = max(map(len, plan))
    lines = [f"{name.ljust(width)}  {text}" for name, text in plan.items()]
    return "\n".join([*lines, "No errors found; run without --dry-run to train."])


def _format_size(num_workers: int, x: Any, y: Any) -> str:
    source = as_data_source(x, y, num_workers)
    part = "file" if isinstance(x, FileDataset) else "block"
    return f"{counted(source.number_samples, 'sample')} in {counted(len(source.sizes), part)}"


def _format_options(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items())


def _format_result(trainer: DistributedTrainer, folder: run_files.RunFolder) -> str:
    """Return the last metrics of a run, why it has stopped, and its files."""
    lines = []
    history = trainer.history
    if history:
        epochs = counted(history[-1]["epoch"], "epoch")
        rounds = counted(len(history), "round")
        workers = counted(trainer.num_workers, "worker")
        seconds = sum(record["seconds"] for record in history)
        metrics = format_metrics(history[-1])
        lines.append(f"{epochs} in {rounds}, {workers}, {seconds:,.1f} s: {metrics}")
    if trainer.stopped is not None:
        lines.append(f"stopped: {trainer.stopped}")
    names = ", ".join(path.name for path in folder.existing_files())
    return "\n".join([*lines, f"in {_relative(folder.path)}: {names}"])


def _format_interrupted(run: training.TrainingRun) -> str:
    """Return which results an interrupted run has left, and how to continue it."""
    folder = run.folder
    if run.trainer.history and not folder.path.exists():
        return f"{_relative(folder.path)} was moved or removed while the fit ran"
    if not folder.has_results:
        return "no round was completed"
    resume = "--resume continues from the last checkpoint"
    hint = resume if folder.has_checkpoints else "it has no checkpoint to resume"
    return f"{_relative(folder.path)} has the results so far; {hint}"


def format_metrics(record: dict[str, Any]) -> str:
    """Return the losses and metrics of a record that are single numbers."""
    numbers = {
        name: record[name]
        for name in measured_names(record)
        if isinstance(record[name], int | float)
    }
    return ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in numbers.items())


def _relative(path: Path) -> str:
    """Return a path relative to the current folder if it is inside."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
