"""``compss-train fit``: a training run described by a TOML file."""

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from compss_train.cli.commands.base import Command, add_setting_arguments, get_settings

if TYPE_CHECKING:
    from compss_train.cli.run_files.training import TrainingRun

FAILED = 1
"""Exit code if training fails after it has started."""
UNFINISHED = 75
"""Exit code after ``max_time``: EX_TEMPFAIL of sysexits.h, for what should be tried again later."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, nargs="?", metavar="FILE", help="a TOML file, or the folder of a run")
    parser.add_argument("--example", action="store_true", help="print a TOML file that trains, with comments")
    parser.add_argument("--keys", action="store_true", help="print the keys of all sections, with their defaults")
    add_setting_arguments(parser)
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="folder of the run's files (output.folder)")
    again = parser.add_mutually_exclusive_group()
    resume = "continue the run in the folder from its last checkpoint; start one if there is none"
    again.add_argument("--resume", action="store_true", help=resume)
    again.add_argument("--overwrite", action="store_true", help="replace the run in the folder")
    dry_run = "check everything, train on one batch in this process, print the plan"
    parser.add_argument("--dry-run", action="store_true", help=dry_run)


def _run(options: argparse.Namespace) -> int:
    """Train; return 0 when done, 1 if training failed, 75 after ``max_time``."""
    if options.example or options.keys:
        return _print_example() if options.example else _print_keys()
    if options.file is None:
        raise ValueError("name a TOML file; compss-train fit --example prints one to start with")
    from compss_train.cli.run_files.run_file import read_run_file
    from compss_train.cli.run_files.training import prepare_run

    hint = "compss-train fit --example prints one"
    run_file = read_run_file(options.file, get_settings(options), hint)
    if options.output is not None:
        run_file = run_file.with_value("output", "folder", str(options.output.absolute()))
    with run_file.working_directory():
        run = prepare_run(run_file, resume=options.resume, overwrite=options.overwrite)
        return _dry_run(run) if options.dry_run else _train(run, options)


def _print_example() -> int:
    from compss_train.cli.run_files.example import EXAMPLE

    print(EXAMPLE, end="")
    return 0


def _print_keys() -> int:
    from compss_train.cli.run_files.messages import format_keys

    print(format_keys())
    return 0


def _dry_run(run: TrainingRun) -> int:
    from compss_train.cli.run_files.errors import append_notes, format_exception
    from compss_train.cli.run_files.messages import format_plan

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


def _train(run: TrainingRun, options: argparse.Namespace) -> int:
    from compss_train.cli.run_files.errors import RunFileError, append_notes, format_exception
    from compss_train.cli.run_files.messages import format_interrupted, format_result
    from compss_train.cli.run_files.training import train

    try:
        trainer = train(run)
    except RunFileError:
        raise
    except (KeyboardInterrupt, SystemExit):
        print(f"compss-train fit: {format_interrupted(run.folder)}", file=sys.stderr)
        raise
    except Exception as error:
        if options.traceback:
            traceback.print_exc()
        hint = format_interrupted(run.folder) + ("" if options.traceback else "; --traceback shows where it failed")
        message = append_notes(format_exception(error), error, *_python_path_hint(error, run), hint)
        print(f"compss-train fit: training failed: {message}", file=sys.stderr)
        return FAILED
    print(format_result(trainer, run.folder))
    return UNFINISHED if trainer.stopped == "max_time" else 0


def _python_path_hint(error: Exception, run: TrainingRun) -> list[str]:
    if not isinstance(error, ModuleNotFoundError):
        return []
    return [f"Workers of COMPSs find modules by a flag: runcompss --pythonpath={run.file.home}"]


FIT = Command(
    name="fit",
    help="train a network as described by a TOML file",
    add_arguments=_add_arguments,
    run=_run,
    examples="""\
  compss-train fit --example > spirals.toml
  compss-train fit spirals.toml
  compss-train fit spirals.toml --dry-run
  compss-train fit spirals.toml --workers 4 --set fit.num_epochs=50 --set build.optimizer.lr=0.003 --output runs/b
  compss-train fit spirals.toml --resume

Exit codes: 0 done, 1 training failed, 2 invalid input, 75 stopped by max_time, 130 after Ctrl-C, 143 after SIGTERM.
After 1, 75, 130 and 143, --resume continues from the last checkpoint.""",
)
