"""``compss-train fit``: a training run that a TOML file describes."""

from __future__ import annotations

import argparse
import sys
import traceback
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from compss_train.cli.commands.base import Command, add_run_settings, settings_of

if TYPE_CHECKING:
    from compss_train.cli.run_files.training import Training

FAILED = 1
"""Exit code where training fails after it has begun."""
UNFINISHED = 75
"""Exit code where ``max_time`` has ended it, that of sysexits.h for what is to be tried again later."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    file = "a TOML file, or the folder of a run"
    parser.add_argument("file", type=Path, nargs="?", metavar="FILE", help=file)
    parser.add_argument("--example", action="store_true", help="print a TOML file that trains, with comments")
    parser.add_argument("--keys", action="store_true", help="print the keys of the sections, with their defaults")
    add_run_settings(parser)
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="for the run's files (output.folder)")
    again = parser.add_mutually_exclusive_group()
    again.add_argument(
        "--resume",
        action="store_true",
        help="go on with the run in the folder, where there is one, from its checkpoint",
    )
    again.add_argument("--overwrite", action="store_true", help="remove a run that is in the folder")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check everything, train on one batch in this process, say what would be done",
    )


def run(options: argparse.Namespace) -> int:
    """Train; return 0 when that is done, 1 where it has failed, 75 where ``max_time`` has ended it."""
    if options.example:
        print(files("compss_train.cli.run_files").joinpath("example.toml").read_text(encoding="utf-8"), end="")
        return 0
    if options.keys:
        return _show_keys()
    if options.file is None:
        raise ValueError("name a TOML file; compss-train fit --example prints one to begin with")
    from compss_train.cli.run_files.file import read_run_file
    from compss_train.cli.run_files.training import read_training

    hint = "compss-train fit --example prints one"
    run_file = read_run_file(options.file, settings_of(options), hint)
    if options.output is not None:
        run_file = run_file.with_value("output", "folder", str(options.output.absolute()))
    with run_file.at_home():
        training = read_training(run_file, resume=options.resume, overwrite=options.overwrite)
        return _show(training) if options.dry_run else _train(training, options)


def _show_keys() -> int:
    from compss_train.cli.run_files.keys import told_keys  # it needs torch, which other commands do without

    print(told_keys())
    return 0


def _show(training: Training) -> int:
    from compss_train.cli.run_files.checking import try_a_batch, warn_as_fit
    from compss_train.cli.run_files.messages import planned
    from compss_train.cli.run_files.problems import describe, with_notes

    plan = planned(training)
    model = training.model
    if not model.build.get("num_gpu"):
        try:
            try_a_batch(model.net, model.build, training.data, training.fit)
        except Exception as error:
            told = with_notes(f"the first batch cannot be trained on: {describe(error)}", error)
            print(f"compss-train fit: {told}", file=sys.stderr)
            return 2
    warn_as_fit(model.num_workers, training.blocks, training.data, training.fit)
    print(plan)
    return 0


def _train(training: Training, options: argparse.Namespace) -> int:
    from compss_train.cli.run_files.messages import left, reached
    from compss_train.cli.run_files.problems import RunFileError, describe, with_notes
    from compss_train.cli.run_files.training import train

    try:
        trainer = train(training)
    except RunFileError:
        raise
    except (KeyboardInterrupt, SystemExit):
        print(f"compss-train fit: {left(training.folder)}", file=sys.stderr)
        raise
    except Exception as error:
        if options.traceback:
            traceback.print_exc()
        hint = left(training.folder) + ("" if options.traceback else "; --traceback shows where it failed")
        told = with_notes(describe(error), error, *_where_workers_look(error, training), hint)
        print(f"compss-train fit: training failed: {told}", file=sys.stderr)
        return FAILED
    print(reached(trainer, training.folder))
    return UNFINISHED if trainer.stopped == "max_time" else 0


def _where_workers_look(error: Exception, training: Training) -> list[str]:
    if not isinstance(error, ModuleNotFoundError):
        return []
    return [f"Workers of COMPSs need to be told of modules: runcompss --pythonpath={training.file.home}"]


COMMAND = Command(
    "fit",
    "train a network as a TOML file says",
    add_arguments,
    run,
    examples="""\
  compss-train fit --example > spirals.toml
  compss-train fit spirals.toml
  compss-train fit spirals.toml --dry-run
  compss-train fit spirals.toml --workers 4 --set fit.num_epochs=50 --set build.optimizer.lr=0.003 --output runs/b
  compss-train fit spirals.toml --resume

Exit codes: 0 done, 1 training has failed, 2 something is wrong with what was given, 75 stopped by max_time,
130 after Ctrl-C, 143 after SIGTERM. After 1, 75, 130 and 143, --resume goes on from the last checkpoint.""",
)
