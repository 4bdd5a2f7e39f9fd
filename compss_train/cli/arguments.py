"""The arguments of each subcommand of ``compss-train``.

A subcommand is a function that adds its arguments to a parser; its docstring is what ``--help``
prints. The code that runs subcommands may need torch, and is not imported here.
"""

import argparse
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from compss_train._utils import __version__
from compss_train.online.job_variables import ADDRESS_VARIABLE, NAME_VARIABLE, TOKEN_VARIABLE
from compss_train.reports.records import Axis

Parser = argparse.ArgumentParser

DEFAULT_PYTHON = "python3"
"""What workers of COMPSs run without ``runcompss --python_interpreter``."""

DTYPES = ("float32", "float64", "int32", "int64", "uint8")
"""Dtypes of the samples that ``send`` reads; the first is the default."""
"""Environment variable for the token, as other users can read command lines."""


class _Setting(argparse.Action):
    """A shorthand for ``--set``, of the key that is its ``const``."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, value: Any, option: Any = None
    ) -> None:
        setting = f"{self.const}={json.dumps(value, ensure_ascii=False)}"
        namespace.settings = [*namespace.settings, setting]


def _path(text: str) -> Path:
    """Return a path; an empty one is an error: an unset variable, not the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; is a variable of the shell not set?")
    return Path(text)


def _absolute_path(text: str) -> str:
    return str(_path(text).absolute())


def _comma_separated(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"give names separated by commas, not {text!r}")
    return names


def make_parser() -> Parser:
    """Return the parser of all subcommands.

    Parsed options hold ``module``, the module of ``compss_train.cli`` whose function of the
    command's name runs it.
    """
    parser = Parser(
        prog="compss-train",
        description=(
            "Train PyTorch models with many workers, on this machine or on a cluster of "
            "COMPSs or Ray."
        ),
        epilog=(
            "compss-train COMMAND --help describes a command. To start: compss-train fit --example"
        ),
    )
    parser.add_argument("--version", action="version", version=f"compss_train {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module, commands in COMMANDS.items():
        for add_arguments in commands:
            description, _, examples = (inspect.getdoc(add_arguments) or "").partition("\n\n")
            command = subparsers.add_parser(
                add_arguments.__name__.removesuffix("_arguments"),
                help=f"{description[:1].lower()}{description[1:].rstrip('.')}",
                description=description,
                epilog=examples,
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
            command.set_defaults(module=module)
            add_arguments(command)
    return parser


def fit_arguments(parser: Parser) -> None:
    """Train a network as described by a TOML file.

    examples:
      compss-train fit --example > spirals.toml
      compss-train fit spirals.toml
      compss-train fit spirals.toml --dry-run
      compss-train fit spirals.toml --set fit.num_epochs=50 --set build.optimizer.lr=0.003
      compss-train fit spirals.toml --workers 4 --resume

    Exit codes: 0 done, 1 training failed, 2 invalid input, 75 stopped by max_time,
    130 after Ctrl-C, 143 after SIGTERM. After 1, 75, 130 and 143, --resume continues
    from the last checkpoint.
    """
    parser.add_argument(
        "file", type=_path, nargs="?", metavar="FILE", help="a TOML file, or the folder of a run"
    )
    parser.add_argument(
        "--example", action="store_true", help="print a TOML file that trains, with comments"
    )
    parser.add_argument(
        "--keys",
        action="store_true",
        help="print the keys of all sections, with their defaults and types",
    )
    _add_settings(parser)
    parser.add_argument(
        "--output",
        action=_Setting,
        const="output.folder",
        type=_absolute_path,
        metavar="FOLDER",
        help="folder of the run's files (output.folder)",
    )
    again = parser.add_mutually_exclusive_group()
    again.add_argument(
        "--resume",
        action="store_true",
        help="continue the run in the folder from its last checkpoint, or start one",
    )
    again.add_argument("--overwrite", action="store_true", help="replace the run in the folder")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check everything, train on one batch in this process, print the plan",
    )


def _add_settings(parser: Parser) -> None:
    """Add arguments that change values of a run file."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="settings",
        metavar="SECTION.KEY=VALUE",
        help=(
            "set a key of the file, the value as in TOML, strings also without quotes; may be "
            "repeated"
        ),
    )
    parser.add_argument(
        "--workers",
        action=_Setting,
        const="trainer.num_workers",
        type=int,
        metavar="N",
        help="model copies (trainer.num_workers)",
    )
    parser.add_argument(
        "--engine",
        action=_Setting,
        const="trainer.engine",
        metavar="ENGINE",
        help="where tasks run: auto, serial, local, compss or ray (trainer.engine)",
    )
    parser.add_argument("--traceback", action="store_true", help="print the traceback of an error")


def evaluate_arguments(parser: Parser) -> None:
    """Compute the loss and metrics of a run's network on its validation data or other data.

    examples:
      compss-train evaluate runs/spirals
      compss-train evaluate runs/spirals --best --data "test/*.npz" --json
      compss-train evaluate runs/spirals --data test-x.npy test-y.npy
    """
    _add_run(parser)
    parser.add_argument(
        "--data",
        nargs="+",
        default=(),
        metavar="FILE",
        help=(
            "files with x and y (.npz, .pt, .h5; quoted patterns), or two .npy files, x and y "
            "(default: the run's validation data)"
        ),
    )
    _add_x(parser)
    _add_json(parser)


def _add_json(parser: Parser) -> None:
    """Add that programs read the output."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def predict_arguments(parser: Parser) -> None:
    """Write the outputs of a run's network for samples in files.

    examples:
      compss-train predict runs/spirals --input x.npy --output y.npy
      compss-train predict runs/spirals --best --input "new/*.npz" --output out.npy --classes
      compss-train predict runs/prices --input new.csv --x rooms,area --output prices.csv
      compss-train predict runs/prices --input new.csv --ids street --output prices.parquet
      compss-train predict runs/pets --input photo.jpg --output classes.csv --classes
      compss-train predict runs/pets --input photos --output probabilities.csv
    """
    _add_run(parser)
    parser.add_argument(
        "--input",
        nargs="+",
        required=True,
        metavar="FILE",
        help=(
            "files with samples: .npy, or .npz, .pt, .h5 with an array x, tables, images and "
            "folders of them; quoted patterns"
        ),
    )
    _add_x(parser)
    parser.add_argument(
        "--output",
        type=_path,
        required=True,
        metavar="FILE",
        help=(
            "a .npy file, .npz with an array called output, or .csv or .parquet with a row for "
            "each sample"
        ),
    )
    parser.add_argument(
        "--ids",
        metavar="NAME",
        help=(
            "the column or array of the input that names the samples in a .csv or .parquet "
            "(default: file and row)"
        ),
    )
    written = parser.add_mutually_exclusive_group()
    written.add_argument(
        "--classes",
        action="store_true",
        help=(
            "write the index of each sample's largest output, in tables its class, instead of "
            "the outputs"
        ),
    )
    written.add_argument(
        "--probabilities",
        action="store_true",
        help=(
            "write the probabilities of the classes, in tables beside the class of each sample "
            "(default in tables if the loss is a cross entropy)"
        ),
    )
    written.add_argument(
        "--outputs", action="store_true", help="write the outputs of the network (default)"
    )


def _add_x(parser: Parser) -> None:
    """Add how files name x."""
    parser.add_argument(
        "--x",
        type=_comma_separated,
        default=(),
        metavar="NAME,...",
        help=(
            "the array that is x, or the columns of a table that are x, in order (default: as "
            "[data] of the run)"
        ),
    )


def _add_run(parser: Parser) -> None:
    """Add the run whose network is used."""
    parser.add_argument(
        "run", type=_path, metavar="RUN", help="folder of a run: output of compss-train fit"
    )
    parser.add_argument(
        "--best", action="store_true", help="use its best checkpoint (default: final parameters)"
    )
    parser.add_argument(
        "--averaged",
        action="store_true",
        help="use the average of the parameters, of a run with averaging in [fit.merge]",
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help=(
            "import the modules that the run's file names without printing them, even if it "
            "belongs to another user"
        ),
    )
    _add_settings(parser)


def report_arguments(parser: Parser) -> None:
    """Write an HTML page about a run: curves, timeline of the workers, configuration.

    examples:
      compss-train report runs/spirals
      compss-train report history.jsonl -o report.html
    """
    _add_history(parser)
    _add_picture(
        parser,
        "an .html file (default: report.html in the folder of a run, else an .html file next to "
        "the history)",
    )


def plot_arguments(parser: Parser) -> None:
    """Plot losses, metrics, samples/s and how the workers spent their time.

    examples:
      compss-train plot runs/spirals
      compss-train plot history.jsonl -o curves.svg --against epoch
    """
    _add_history(parser)
    _add_picture(parser, "a .png, .svg or .pdf file (default: plot.png next to the history)")
    _add_axis(parser)


def compare_arguments(parser: Parser) -> None:
    """Print what differs between runs and what they reached; draw their curves together.

    examples:
      compss-train compare runs/*
      compss-train compare runs/a runs/b -o comparison.html --against seconds

    Runs that differ only in their seed are drawn as one: their median, and a band
    from the lowest to the highest.
    """
    _add_history(parser, "runs", nargs="+")
    _add_picture(parser, "also write an .html page, or a .png, .svg or .pdf image, with all curves")
    _add_axis(parser)
    _add_json(parser)


def _add_history(parser: Parser, name: str = "run", nargs: str | None = None) -> None:
    """Add the run or runs that are drawn."""
    parser.add_argument(
        name,
        type=_path,
        nargs=nargs,
        metavar="RUN",
        help=(
            "folder of a run, or a file of JSON lines: history.jsonl, or one of the callback "
            "JsonLines"
        ),
    )


def _add_picture(parser: Parser, text: str) -> None:
    """Add the file that is written."""
    parser.add_argument("-o", "--output", type=_path, metavar="FILE", help=text)


def _add_axis(parser: Parser) -> None:
    parser.add_argument(
        "--against",
        choices=get_args(Axis),
        default="round",
        help="the horizontal axis of curves (default: round)",
    )


def runs_arguments(parser: Parser) -> None:
    """List runs: their state, rounds, last losses and metrics.

    examples:
      compss-train runs
      compss-train runs /scratch/experiments
    """
    parser.add_argument(
        "folder",
        type=_path,
        nargs="?",
        default=Path("runs"),
        metavar="FOLDER",
        help="folder with the folders of runs (default: runs)",
    )
    _add_json(parser)


def advise_arguments(parser: Parser) -> None:
    """Predict the seconds of a round with 1 to 64 workers from the history of a run.

    Before a run, name its run file: how many workers learn as much as one with merge = "auto".

    examples:
      compss-train advise run.toml
      compss-train advise runs/8
      compss-train advise runs/8 --processes 32
    """
    parser.add_argument(
        "run",
        type=_path,
        metavar="RUN",
        help="run file, or folder of a run of an epoch or two, or its history in JSON lines",
    )
    parser.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="workers that train at the same time (default: as many as in the run)",
    )
    _add_json(parser)


def watch_arguments(parser: Parser) -> None:
    """Print what a study does that trains while simulations run.

    examples:
      compss-train watch run/study
      compss-train watch run/study --every 5
      compss-train watch run/study --json

    RUN is the folder of a Checkpoint of fit_online, or the one above it. Exit codes: 0 it runs, or
    has ended, 1 it was killed, has failed or has written nothing for half a minute, 2 there is
    none.
    """
    parser.add_argument(
        "run", type=_path, metavar="RUN", help="folder of the study's checkpoints, or above it"
    )
    parser.add_argument(
        "--every",
        type=float,
        metavar="SECONDS",
        help="print again after so many seconds, until the study has ended",
    )
    _add_json(parser)


def shard_arguments(parser: Parser) -> None:
    """Write arrays, or files of one size, as files of another size or format to train from.

    examples:
      compss-train shard x=images.npy y=labels.npy --rows 5000 --output train
      compss-train shard "train/*.npz" --rows 20000 --format h5 --output large
      compss-train shard "train/*.npz" --rows 5000 --shuffle-buffer 50000 --output mixed
      compss-train shard "plants/*.csv" --keys height,width,kind --rows 5000 --output plants
    """
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help=(
            "files of one kind (.npz, .npy, .pt, .h5, .parquet, .arrow, .csv) or quoted "
            "patterns, or NAME=FILE.npy for each array"
        ),
    )
    parser.add_argument(
        "--output", type=_path, required=True, metavar="FOLDER", help="folder of the new files"
    )
    parser.add_argument("--rows", type=int, required=True, help="samples per file")
    parser.add_argument(
        "--keys",
        type=_comma_separated,
        metavar="NAME,...",
        help=(
            "arrays or columns to write (default: all); strings become the numbers of their classes"
        ),
    )
    parser.add_argument(
        "--format",
        metavar="FORMAT",
        default="npz",
        help="format of the files: npz (default), npz-compressed, npy, pt or h5",
    )
    parser.add_argument(
        "--shuffle-buffer",
        type=int,
        metavar="SAMPLES",
        help="shuffle the samples, in two buffers of this size (default: keep their order)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of --shuffle-buffer (default: 0)")


def simulate_arguments(parser: Parser) -> None:
    """Run the simulations of a program and write their samples to files, to train from later.

    examples:
      compss-train simulate study.py:simulations --output data
      compss-train simulate study.py:simulations --output data --count 8
      compss-train simulate package.study:valid --output valid --engine ray --format h5

    Started again, it goes on after the simulations whose files are complete, and repeats
    those that were given up. Exit codes: 0 done, 1 some were given up, 2 invalid input.
    """
    parser.add_argument(
        "simulations",
        metavar="FILE.py:NAME",
        help=(
            "Simulations(simulate, inputs), or a function that returns them, in a file or a "
            "module; what else the file does belongs below if __name__ == '__main__'"
        ),
    )
    parser.add_argument(
        "--output", type=_path, required=True, metavar="FOLDER", help="folder of the files"
    )
    parser.add_argument(
        "--count", type=int, metavar="N", help="simulations at a time (default: their count=)"
    )
    parser.add_argument(
        "--engine",
        default="auto",
        metavar="ENGINE",
        help="where they run: auto (default), serial, local, compss or ray",
    )
    parser.add_argument(
        "--format", default="npz", help="format of the files: npz (default), npz-compressed, pt, h5"
    )
    parser.add_argument("--traceback", action="store_true", help="print the traceback of an error")


def send_arguments(parser: Parser) -> None:
    """Send samples that a solver writes to standard output to a fit_online.

    The command runs the solver and sees how it ends, or checks the number of samples in a pipe:
      compss-train send ADDRESS --x 2 --y 1 -- ./solver ARGUMENTS
      ./solver | compss-train send ADDRESS --x 2 --y 1 --samples 1000
    """
    parser.add_argument(
        "address",
        nargs="?",
        help=(
            "address= of fit_online, tcp://HOST:PORT (default, in a job of Jobs: environment "
            f"variable {ADDRESS_VARIABLE}, and {NAME_VARIABLE} as the name)"
        ),
    )
    parser.add_argument(
        "--x", required=True, metavar="SHAPE", help="shape of a sample's x, such as 6 or 3x64x64"
    )
    parser.add_argument("--y", metavar="SHAPE", help="shape of its y (default: no y)")
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        default=DTYPES[0],
        help=f"dtype of x and y, in this machine's byte order (default: {DTYPES[0]})",
    )
    parser.add_argument(
        "--steps", action="store_true", help="each record starts with its time step, an int64"
    )
    parser.add_argument(
        "--samples",
        type=int,
        metavar="N",
        help=(
            "how many samples there must be: a pipe does not tell whether the solver has ended well"
        ),
    )
    parser.add_argument(
        "--name",
        help="name of this stream: samples that arrived under it before are not sent again",
    )
    parser.add_argument(
        "--token", help=f"token= of fit_online (default: environment variable {TOKEN_VARIABLE})"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        help="seconds to wait for the fit to start (default: 60)",
    )
    parser.set_defaults(solver=None)


def headers_arguments(parser: Parser) -> None:
    """Print the folder of compss_train.h, melissa_api.h and their Fortran counterparts, for cc -I.

    examples:
      mpicc -I$(compss-train headers) heat.c -o heat
      compss-train headers --build lib
      mpif90 -I$(compss-train headers) heat.f90 -Llib -lmelissa -o heat
      PYTHONPATH=$(compss-train headers --python) python study.py
    """
    printed = parser.add_mutually_exclusive_group()
    printed.add_argument(
        "--python",
        action="store_true",
        help="print the folder of melissa_api.py, for PYTHONPATH of solvers in Python",
    )
    printed.add_argument(
        "--build",
        type=_path,
        metavar="DIR",
        help=(
            "make libcompss_train.a, libmelissa.a and libmelissa_api.a there, for Fortran and "
            "for link lines"
        ),
    )
    parser.add_argument(
        "--compiler",
        metavar="CC",
        help="the C compiler of --build (default: mpicc, or cc without MPI)",
    )


def doctor_arguments(parser: Parser) -> None:
    """Check what this machine, or a cluster of COMPSs or Ray, has for training.

    examples:
      compss-train doctor
      compss-train doctor --engine compss --nodes node1,node2
      RAY_ADDRESS=first:6379 compss-train doctor --engine ray

    Exit codes: 0, or 1 if what the engine needs is missing.
    """
    parser.add_argument(
        "--engine",
        choices=("local", "compss", "ray"),
        help=(
            "the engine whose needs are checked (default: local, or compss with --nodes, "
            "--project or --resources); ray: the cluster at RAY_ADDRESS"
        ),
    )
    parser.add_argument(
        "--project", type=_path, metavar="FILE", help="the project.xml for runcompss"
    )
    parser.add_argument(
        "--resources", type=_path, metavar="FILE", help="the resources.xml for runcompss"
    )
    parser.add_argument(
        "--nodes",
        type=_comma_separated,
        default=(),
        metavar="HOST,...",
        help="hosts to check (default: those of --project)",
    )
    parser.add_argument(
        "--python",
        metavar="FILE",
        default=DEFAULT_PYTHON,
        help="runcompss's --python_interpreter (default: python3, as the nodes find it)",
    )
    _add_json(parser)


def configure_arguments(parser: Parser) -> None:
    """Write project.xml and resources.xml for runcompss: workers, their units, GPUs and ports."""
    workers = parser.add_mutually_exclusive_group()
    workers.add_argument(
        "--nodes",
        type=int,
        default=1,
        help="workers on this machine, on loopback addresses (default: 1)",
    )
    workers.add_argument(
        "--hosts",
        type=_comma_separated,
        metavar="HOST,...",
        help="one worker on each of these machines",
    )
    parser.add_argument(
        "--units",
        type=int,
        help="CPU units of a worker (default: its share of the physical cores)",
    )
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of a worker (default: 0)")
    parser.add_argument(
        "--folder",
        type=_path,
        metavar="FOLDER",
        default=Path(),
        help="folder of the two files (default: the current one)",
    )
    parser.add_argument(
        "--python",
        metavar="FILE",
        default=sys.executable,
        help="the Python of the workers (default: this one)",
    )
    parser.add_argument(
        "--install-dir",
        type=_path,
        metavar="FOLDER",
        help="installation folder of COMPSs on the workers (default: as on this machine)",
    )
    parser.add_argument(
        "--working-dir",
        type=_path,
        metavar="FOLDER",
        help="working folder of the workers (default: a folder of your own in /tmp)",
    )
    parser.add_argument(
        "--first-port",
        type=int,
        help="first port of the first worker (default: free ports here, 44001 on --hosts)",
    )


COMMANDS: dict[str, tuple[Callable[[Parser], None], ...]] = {
    "fit": (fit_arguments,),
    "inference": (evaluate_arguments, predict_arguments),
    "reports": (
        *(report_arguments, plot_arguments, compare_arguments),
        *(runs_arguments, advise_arguments),
    ),
    "studies": (watch_arguments,),
    "data": (shard_arguments,),
    "simulations": (simulate_arguments,),
    "solvers": (send_arguments, headers_arguments),
    "doctor": (doctor_arguments, configure_arguments),
}
"""The commands of each module of ``compss_train.cli``, in the order of ``--help``."""
