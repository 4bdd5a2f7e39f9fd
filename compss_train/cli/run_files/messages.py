"""Texts that ``compss-train`` prints about a run: the keys of its file, its plan, and its results."""

from inspect import Parameter
from pathlib import Path
from typing import Any, Literal

from compss_train.buffers import BufferSpec
from compss_train.cli.run_files.data import array_options, block_options, fraction_options
from compss_train.cli.run_files.model import build_options, trainer_options
from compss_train.cli.run_files.objects import CALL
from compss_train.cli.run_files.options import Option, describe_annotation, format_value, signature_options
from compss_train.cli.run_files.output import callback_tables, output_options
from compss_train.cli.run_files.run_folder import RunFolder
from compss_train.cli.run_files.training import TrainingRun, fit_options
from compss_train.data import FileDataset
from compss_train.engines import engine_class
from compss_train.reports.records import measured_names
from compss_train.trainer import DistributedTrainer
from compss_train.training.data_source import BlockedSource, DataSource, as_data_source


def format_keys() -> str:
    """Return all keys of all sections, with their defaults and accepted values."""
    call = {CALL: Option(CALL, Literal["module:name"], Parameter.empty)}
    sections = {
        "[trainer]": trainer_options(),
        "[network], with arguments of what is called as other keys": call,
        "[data] and [validation], of files": signature_options(FileDataset),
        "[data] and [validation], of arrays": array_options(),
        "[data] and [validation], of a function, with its arguments as other keys": {**call, **block_options()},
        "[validation], of a part of [data]": fraction_options(),
        "[build]": build_options(),
        "[fit]": fit_options(),
        "[fit] buffer, a table": signature_options(BufferSpec),
        "[output]": output_options(),
        **{f"{where}, a table": options for where, options in callback_tables().items() if options},
    }
    return "\n\n".join("\n".join([title, *map(_key_line, keys.values())]) for title, keys in sections.items())


def _key_line(option: Option) -> str:
    default = "(required)" if option.required else f"= {format_value(option.default)}"
    return f"  {option.name} {default}".ljust(40) + f"# {describe_annotation(option.annotation)}"


def format_plan(run: TrainingRun, trainer: DistributedTrainer) -> str:
    """Return what a run would do, for ``--dry-run``."""
    workers = run.model.num_workers
    validation = run.validation_data
    plan = {
        "network": f"{type(run.model.net).__name__}, {_number_of_parameters(run):,} parameters",
        "data": _format_size(as_data_source(*run.data[:2], run.number_blocks())),
        "validation": "none" if validation is None else _format_size(as_data_source(*validation[:2], workers)),
        "workers": f"{workers} ({_engine_name(run)}), {_count(trainer.threads, 'thread')} each",
        "seed": str(trainer.seed),
        "build": _format_options(run.model.build),
        "fit": _format_options({name: value for name, value in run.fit.items() if name != "callbacks"}),
        "callbacks": ", ".join(type(callback).__name__ for callback in run.fit["callbacks"]),
        "output": f"{run.folder.path}{_resume_note(run)}",
    }
    width = max(map(len, plan))
    lines = [f"{name.ljust(width)}  {text}" for name, text in plan.items()]
    return "\n".join([*lines, "No errors found; run without --dry-run to train."])


def _number_of_parameters(run: TrainingRun) -> int:
    return sum(parameter.numel() for parameter in run.model.net.parameters())


def _engine_name(run: TrainingRun) -> str:
    engine = run.model.trainer.get("engine", "auto")
    return engine_class(engine).name if isinstance(engine, str) else type(engine).__name__


def _format_size(source: DataSource) -> str:
    unit = "block" if isinstance(source, BlockedSource) else "file"
    return f"{_count(source.number_samples, 'sample')} in {_count(len(source.sizes), unit)}"


def _format_options(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items())


def _resume_note(run: TrainingRun) -> str:
    if not run.resume:
        return ""
    return ", resumed" if run.folder.has_results else ", which holds no run to resume"


def format_result(trainer: DistributedTrainer, folder: RunFolder) -> str:
    """Return the last metrics of a run, why it has stopped, and its files."""
    lines = []
    if trainer.history:
        lines.append(f"{_format_duration(trainer)}: {format_metrics(trainer.history[-1])}")
    if (reason := trainer.stopped) is not None:
        lines.append(f"stopped: {reason}")
    names = ", ".join(path.name for path in folder.existing_files())
    return "\n".join([*lines, f"in {_relative(folder.path)}: {names}"])


def format_interrupted(folder: RunFolder) -> str:
    """Return which results an interrupted run has left, and how to continue it."""
    if not folder.has_results:
        return "no round was completed"
    hint = (
        "--resume continues from the last checkpoint"
        if folder.has_checkpoints
        else "it has no checkpoint to resume"
    )
    return f"{_relative(folder.path)} has the results so far; {hint}"


def format_metrics(record: dict[str, Any]) -> str:
    """Return the losses and metrics of a record that are single numbers."""
    numbers = {name: record[name] for name in measured_names(record) if isinstance(record[name], int | float)}
    return ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in numbers.items())


def _format_duration(trainer: DistributedTrainer) -> str:
    seconds = sum(record["seconds"] for record in trainer.history)
    epochs = _count(trainer.history[-1]["epoch"], "epoch")
    rounds = _count(len(trainer.history), "round")
    return f"{epochs} in {rounds}, {_count(trainer.num_workers, 'worker')}, {seconds:,.1f} s"


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}" if number == 1 else f"{number:,} {name}s"


def _relative(path: Path) -> str:
    """Return a path relative to the current folder if it is inside."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
