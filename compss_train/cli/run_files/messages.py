"""What to say about a run that would begin, and about one that has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compss_train.cli.run_files.folder import RunFolder
from compss_train.cli.run_files.training import Training
from compss_train.engines import engine_class
from compss_train.reports.record_fields import measured_names
from compss_train.trainer import DistributedTrainer
from compss_train.training.data_source import BlockedSource, DataSource, as_data_source


def planned(training: Training) -> str:
    """Return what a run would do."""
    trainer = training.model.built()
    workers = training.model.num_workers
    told = {
        "network": f"{type(training.model.net).__name__}, {_weights(training):,} parameters",
        "data": _size(as_data_source(*training.data[:2], training.blocks)),
        "validation": "none"
        if training.held_out is None
        else _size(as_data_source(*training.held_out[:2], workers)),
        "workers": f"{workers} ({_engine(training)}), {_count(trainer.threads, 'thread')} each",
        "seed": str(trainer.seed),
        "build": _options(training.model.build),
        "fit": _options({name: value for name, value in training.fit.items() if name != "callbacks"}),
        "callbacks": ", ".join(type(callback).__name__ for callback in training.fit["callbacks"]),
        "output": f"{training.folder.path}{_resumed(training)}",
    }
    width = max(map(len, told))
    lines = [f"{name.ljust(width)}  {text}" for name, text in told.items()]
    return "\n".join([*lines, "Nothing is wrong; without --dry-run this is trained."])


def _weights(training: Training) -> int:
    return sum(parameter.numel() for parameter in training.model.net.parameters())


def _engine(training: Training) -> str:
    engine = training.model.trainer.get("engine", "auto")
    return engine_class(engine).name if isinstance(engine, str) else type(engine).__name__


def _size(given: DataSource) -> str:
    unit = "block" if isinstance(given, BlockedSource) else "file"
    return f"{_count(given.number_samples, 'sample')} in {_count(len(given.sizes), unit)}"


def _options(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items())


def _resumed(training: Training) -> str:
    if not training.resume:
        return ""
    return ", resumed" if training.folder.holds_run else ", where there is no run to resume"


def reached(trainer: DistributedTrainer, folder: RunFolder) -> str:
    """Return what a run has come to, and where its files are."""
    lines = []
    if trainer.history:
        last = trainer.history[-1]
        lines.append(f"{_done(trainer)}: {measured(last)}")
    if (reason := trainer.stopped) is not None:
        lines.append(f"stopped: {reason}")
    names = ", ".join(path.name for path in folder.existing())
    return "\n".join([*lines, f"in {_shown(folder.path)}: {names}"])


def left(folder: RunFolder) -> str:
    """Return where the files of a run that has ended early are, and how to go on with it."""
    if not folder.holds_run:
        return "no round had ended"
    there = any(folder.checkpoints.glob("round-*"))
    how = "--resume goes on from the last checkpoint" if there else "there is no checkpoint to go on from"
    return f"{_shown(folder.path)} has what was reached; {how}"


def measured(record: dict[str, Any]) -> str:
    """Return losses and metrics that are single numbers."""
    numbers = {name: record[name] for name in measured_names(record) if isinstance(record[name], int | float)}
    return ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in numbers.items())


def _done(trainer: DistributedTrainer) -> str:
    seconds = sum(record["seconds"] for record in trainer.history)
    epochs = _count(trainer.history[-1]["epoch"], "epoch")
    rounds = _count(len(trainer.history), "round")
    return f"{epochs} in {rounds}, {_count(trainer.num_workers, 'worker')}, {seconds:,.1f} s"


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}" if number == 1 else f"{number:,} {name}s"


def _shown(path: Path) -> str:
    """Return a path from the current folder, where it is below that."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
