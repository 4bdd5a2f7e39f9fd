"""``compss-train fit``: trains as a TOML file says, and prints its keys, the plan of a run and its results."""

import argparse
import sys
import traceback
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from compss_train import callbacks
from compss_train.buffers import BufferSpec
from compss_train.cli.run_files import RunFileError, append_notes, format_exception, read_run_file
from compss_train.cli.run_files.data import ARRAYS, BLOCKS, FRACTION
from compss_train.cli.run_files.objects import CALL
from compss_train.cli.run_files.options import (
    REQUIRED,
    Key,
    describe,
    format_value,
    signature_options,
)
from compss_train.cli.run_files.run_folder import RunFolder
from compss_train.cli.run_files.sections import BUILD, FIT, OUTPUT, TRAINER, WRITERS, callback_options
from compss_train.cli.run_files.training import TrainingRun, prepare_run, train
from compss_train.data import FileDataset
from compss_train.engines import engine_class
from compss_train.reports.records import measured_names
from compss_train.trainer import DistributedTrainer
from compss_train.training.data_source import BlockedSource, DataSource, as_data_source

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
    run_file = read_run_file(options.file, options.settings, "compss-train fit --example prints one")
    with run_file.working_directory():
        run = prepare_run(run_file, resume=options.resume, overwrite=options.overwrite)
        return _dry_run(run) if options.dry_run else _train(run, show_traceback=options.traceback)


def _dry_run(run: TrainingRun) -> int:
    with run.model.build_trainer() as trainer:
        plan = format_plan(run, trainer)
        try:
            trainer.check_fit(**run.arguments())
        except Exception as error:  # the network and other code of the user may raise any kind
            message = append_notes(f"the fit would fail: {format_exception(error)}", error)
            print(f"compss-train fit: {message}", file=sys.stderr)
            return 2
    print(plan)
    return 0


def _train(run: TrainingRun, *, show_traceback: bool) -> int:
    try:
        trainer = train(run)
    except RunFileError:
        raise
    except (KeyboardInterrupt, SystemExit):
        print(f"compss-train fit: {_format_interrupted(run.folder)}", file=sys.stderr)
        raise
    except Exception as error:
        lines = [_format_interrupted(run.folder)]
        if show_traceback:
            traceback.print_exc()
        else:
            lines[0] += "; --traceback shows where it failed"
        if isinstance(error, ModuleNotFoundError):
            lines.insert(0, f"Workers of COMPSs find modules by a flag: runcompss --pythonpath={run.file.home}")
        message = append_notes(format_exception(error), error, *lines)
        print(f"compss-train fit: training failed: {message}", file=sys.stderr)
        return FAILED
    print(_format_result(trainer, run.folder))
    return UNFINISHED if trainer.stopped == "max_time" else 0


def format_keys() -> str:
    """Return all keys of all sections, with their defaults and accepted values."""
    call = {CALL: Key(Literal["module:name"])}
    sections = {
        "[trainer]": TRAINER,
        "[network], with arguments of what is called as other keys": call,
        "[data] and [validation], of files": signature_options(FileDataset),
        "[data] and [validation], of arrays": ARRAYS,
        "[data] and [validation], of a function, with its arguments as other keys": {**call, **BLOCKS},
        "[validation], of a part of [data]": {FRACTION: Key(float)},
        "[build]": BUILD,
        "[fit]": FIT,
        "[fit] buffer, a table": signature_options(BufferSpec),
        "[fit] early_stopping, a table": callback_options(callbacks.EarlyStopping),
        "[output]": OUTPUT,
        **{f"[output] {key}, a table": callback_options(writer.callback) for key, writer in WRITERS.items()},
    }
    blocks = []
    for title, keys in sections.items():
        lines = [title]
        for name, key in keys.items():
            default = "(required)" if key.default is REQUIRED else f"= {format_value(key.default)}"
            lines.append(f"  {name} {default}".ljust(40) + f"# {describe(key.annotation)}")
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def format_plan(run: TrainingRun, trainer: DistributedTrainer) -> str:
    """Return what a run would do, for ``--dry-run``."""
    workers, validation = run.model.num_workers, run.validation_data
    engine = run.model.trainer.get("engine", "auto")
    engine_name = engine_class(engine).name if isinstance(engine, str) else type(engine).__name__
    parameters = sum(parameter.numel() for parameter in run.model.net.parameters())
    resumed = ", resumed" if run.folder.has_results else ", which holds no run to resume"
    plan = {
        "network": f"{type(run.model.net).__name__}, {parameters:,} parameters",
        "data": _format_size(as_data_source(*run.data[:2], run.number_blocks())),
        "validation": "none" if validation is None else _format_size(as_data_source(*validation[:2], workers)),
        "workers": f"{workers} ({engine_name}), {_count(trainer.threads, 'thread')} each",
        "seed": str(trainer.seed),
        "build": _format_options(run.model.build),
        "fit": _format_options({name: value for name, value in run.fit.items() if name != "callbacks"}),
        "callbacks": ", ".join(type(callback).__name__ for callback in run.fit["callbacks"]),
        "output": f"{run.folder.path}{resumed if run.resume else ''}",
    }
    width = max(map(len, plan))
    lines = [f"{name.ljust(width)}  {text}" for name, text in plan.items()]
    return "\n".join([*lines, "No errors found; run without --dry-run to train."])


def _format_size(source: DataSource) -> str:
    unit = "block" if isinstance(source, BlockedSource) else "file"
    return f"{_count(source.number_samples, 'sample')} in {_count(len(source.sizes), unit)}"


def _format_options(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items())


def _format_result(trainer: DistributedTrainer, folder: RunFolder) -> str:
    """Return the last metrics of a run, why it has stopped, and its files."""
    lines = []
    if history := trainer.history:
        counts = [(history[-1]["epoch"], "epoch"), (len(history), "round"), (trainer.num_workers, "worker")]
        epochs, rounds, workers = (_count(*each) for each in counts)
        seconds = sum(record["seconds"] for record in history)
        lines.append(f"{epochs} in {rounds}, {workers}, {seconds:,.1f} s: {format_metrics(history[-1])}")
    if (reason := trainer.stopped) is not None:
        lines.append(f"stopped: {reason}")
    names = ", ".join(path.name for path in folder.existing_files())
    return "\n".join([*lines, f"in {_relative(folder.path)}: {names}"])


def _format_interrupted(folder: RunFolder) -> str:
    """Return which results an interrupted run has left, and how to continue it."""
    if not folder.has_results:
        return "no round was completed"
    resume = "--resume continues from the last checkpoint"
    hint = resume if folder.has_checkpoints else "it has no checkpoint to resume"
    return f"{_relative(folder.path)} has the results so far; {hint}"


def format_metrics(record: dict[str, Any]) -> str:
    """Return the losses and metrics of a record that are single numbers."""
    numbers = {name: record[name] for name in measured_names(record) if isinstance(record[name], int | float)}
    return ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in numbers.items())


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}" if number == 1 else f"{number:,} {name}s"


def _relative(path: Path) -> str:
    """Return a path relative to the current folder if it is inside."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
