"""The arguments of each subcommand of ``compss-train``. What runs it, and may need torch, is not imported here."""

import argparse
import json
import os
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from compss_train._utils import __version__
from compss_train._utils.imports import import_optional

ENGINES = ("auto", "serial", "local", "compss")
AXES = ("round", "epoch", "samples", "seconds")
FORMATS = ("npz", "npz-compressed", "npy", "pt", "h5")
DTYPES = ("float32", "float64", "int32", "int64", "uint8")
SHELLS = ("bash", "zsh", "tcsh")
TOKEN_VARIABLE = "COMPSS_TRAIN_TOKEN"
"""Environment variable for the token, as other users can read command lines."""

FILES = ("FILE", "RUN", "INPUT")
FOLDERS = ("FOLDER",)
"""Metavars of arguments that are names of files and folders, which shells complete."""


class _Setting(argparse.Action):
    """A shorthand for ``--set``, of the key that is its ``const``."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, value: Any, option: Any = None) -> None:
        text = json.dumps(value, ensure_ascii=False)
        namespace.settings = [*namespace.settings, f"{self.const}={text}"]


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all subcommands.

    Parsed options hold it as ``parser``, and as ``module`` the module of ``compss_train.cli`` whose function of the
    command's name runs it with them.
    """
    parser = argparse.ArgumentParser(
        prog="compss-train",
        description="Train PyTorch models with many workers, on this machine or on a COMPSs cluster.",
        epilog="compss-train COMMAND --help describes a command. To start: compss-train fit --example",
    )
    parser.add_argument("--version", action="version", version=f"compss_train {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    groups = {"fit": _add_fit, "inference": _add_inference, "reports": _add_reports, "data": _add_data}
    for module, add_commands in {**groups, "doctor": _add_doctor, "arguments": _add_completion}.items():
        add_commands(partial(_add_command, subparsers, module))
    parser.set_defaults(parser=parser)
    return parser


AddCommand = Callable[..., argparse.ArgumentParser]


def _add_command(
    subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]",
    module: str,
    name: str,
    help: str,
    *examples: str,
) -> argparse.ArgumentParser:
    """Return the parser of a new command; the lines of examples end its ``--help``."""
    command = subparsers.add_parser(
        name,
        help=help,
        description=textwrap.fill(f"{help[0].upper()}{help[1:]}."),
        epilog="\n  ".join(["examples:", *examples]) if examples else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(module=module)
    return command


def _add_fit(add: AddCommand) -> None:
    fit = add(
        "fit",
        "train a network as described by a TOML file",
        "compss-train fit --example > spirals.toml",
        "compss-train fit spirals.toml",
        "compss-train fit spirals.toml --dry-run",
        "compss-train fit spirals.toml --workers 4 --set fit.num_epochs=50 --set build.optimizer.lr=0.003",
        "compss-train fit spirals.toml --resume\n",
    )
    fit.epilog = f"""{fit.epilog}
Exit codes: 0 done, 1 training failed, 2 invalid input, 75 stopped by max_time, 130 after Ctrl-C, 143 after SIGTERM.
After 1, 75, 130 and 143, --resume continues from the last checkpoint."""
    fit.add_argument("file", type=Path, nargs="?", metavar="FILE", help="a TOML file, or the folder of a run")
    fit.add_argument("--example", action="store_true", help="print a TOML file that trains, with comments")
    fit.add_argument(
        "--keys", action="store_true", help="print the keys of all sections, with their defaults and types"
    )
    _add_settings(fit)
    folder = "folder of the run's files (output.folder)"
    fit.add_argument(
        "--output", action=_Setting, const="output.folder", type=os.path.abspath, metavar="FOLDER", help=folder
    )
    again = fit.add_mutually_exclusive_group()
    resume = "continue the run in the folder from its last checkpoint; start one if there is none"
    again.add_argument("--resume", action="store_true", help=resume)
    again.add_argument("--overwrite", action="store_true", help="replace the run in the folder")
    dry_run = "check everything, train on one batch in this process, print the plan"
    fit.add_argument("--dry-run", action="store_true", help=dry_run)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    """Add arguments that change values of a run file."""
    text = "set a key of the file, the value as in TOML, strings also without quotes; may be repeated"
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", dest="settings", help=text
    )
    set_key = partial(parser.add_argument, action=_Setting)
    set_key(
        "--workers", const="trainer.num_workers", type=int, metavar="N", help="model copies (trainer.num_workers)"
    )
    set_key("--engine", const="trainer.engine", choices=ENGINES, help="where tasks run (trainer.engine)")
    parser.add_argument("--traceback", action="store_true", help="print the traceback of an error")


def _add_inference(add: AddCommand) -> None:
    evaluate = add(
        "evaluate",
        "compute the loss and metrics of a run's network on its validation data or other data",
        "compss-train evaluate runs/spirals",
        'compss-train evaluate runs/spirals --best --data "test/*.npz" --json',
        "compss-train evaluate runs/spirals --data test-x.npy test-y.npy",
    )
    predict = add(
        "predict",
        "write the outputs of a run's network for samples in files",
        "compss-train predict runs/spirals --input x.npy --output y.npy",
        'compss-train predict runs/spirals --best --input "new/*.npz" --output classes.npy --classes',
    )
    export = add(
        "export",
        "write a run's network as ONNX, or its parameters, for other programs",
        "compss-train export runs/spirals -o spirals.onnx",
        "compss-train export runs/spirals -o spirals.safetensors --best",
    )
    for parser in (evaluate, predict, export):
        parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run: output of compss-train fit")
        best = "use its best checkpoint (default: final parameters)"
        parser.add_argument("--best", action="store_true", help=best)
        trust = "import the modules that the run's file names without saying so, also if it belongs to another user"
        parser.add_argument("--trust", action="store_true", help=trust)
        _add_settings(parser)
    data = (
        "files with x and y (.npz, .pt, .h5; quoted patterns), or two .npy files, x and y "
        "(default: the run's validation data)"
    )
    evaluate.add_argument("--data", nargs="+", default=(), metavar="FILE", help=data)
    evaluate.add_argument("--json", action="store_true", help="print JSON")
    files = "files with samples: .npy, or .npz, .pt, .h5 with an array x; quoted patterns"
    predict.add_argument("--input", nargs="+", required=True, metavar="FILE", help=files)
    output = "a .npy file, or .npz with an array called output; in the order of the samples"
    predict.add_argument("--output", type=Path, required=True, metavar="FILE", help=output)
    classes = "write the index of each sample's largest output instead of the outputs"
    predict.add_argument("--classes", action="store_true", help=classes)
    output = "a name that ends in .onnx (the network), .safetensors or .npz (its parameters)"
    export.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help=output)
    example = "for .onnx: a file with at least one sample, for shape and dtype (default: the run's data)"
    export.add_argument("--input", metavar="FILE", help=example)


def _add_reports(add: AddCommand) -> None:
    report = add(
        "report",
        "write an HTML page about a run: curves, timeline of the workers, configuration",
        "compss-train report runs/spirals",
        "compss-train report history.jsonl -o report.html",
        "compss-train report runs/* -o comparison.html",
    )
    plot = add(
        "plot",
        "plot losses, metrics, samples/s and how the workers spent their time",
        "compss-train plot runs/spirals",
        "compss-train plot history.jsonl -o curves.svg --against epoch",
        "compss-train plot runs/a runs/b -o both.png",
    )
    compare = add(
        "compare",
        "print what differs between runs and what they reached; draw their curves together",
        "compss-train compare runs/*",
        "compss-train compare runs/a runs/b -o comparison.html --against seconds\n",
    )
    compare.epilog = f"""{compare.epilog}
Runs that differ only in their seed are drawn as one: their median, and a band from the lowest to the highest."""
    page = "report.html in the folder of a run, else an .html file next to the history"
    outputs = {
        report: f"an .html file (default: {page}; of several runs, comparison.html here)",
        plot: "a .png, .svg or .pdf file (default: plot.png next to the history; of several runs, comparison.png)",
        compare: "also write an .html page, or a .png, .svg or .pdf image, with all curves",
    }
    for parser, output in outputs.items():
        text = "folder of a run, or a file of JSON lines: history.jsonl, or one of the callback JsonLines"
        parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help=text)
        parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=output)
    for parser in (plot, compare):
        axis = "the horizontal axis of curves (default: round)"
        parser.add_argument("--against", choices=AXES, default=AXES[0], help=axis)
    runs = add(
        "runs",
        "list runs: their state, rounds, last losses and metrics",
        "compss-train runs",
        "compss-train runs /scratch/experiments",
    )
    text = "folder with the folders of runs (default: runs)"
    runs.add_argument("folder", type=Path, nargs="?", default=Path("runs"), metavar="FOLDER", help=text)
    advise = add(
        "advise",
        "predict the seconds of a round with 1 to 64 workers from the history of a run",
        "compss-train advise runs/8",
        "compss-train advise runs/8 --processes 32",
    )
    run = "folder of a run, or its history in JSON lines, of an epoch or two"
    advise.add_argument("run", type=Path, metavar="RUN", help=run)
    processes = "workers that train at the same time (default: as many as in the run)"
    advise.add_argument("--processes", type=int, metavar="N", help=processes)


def _add_data(add: AddCommand) -> None:
    shard = add(
        "shard",
        "write arrays, or files of one size, as files of another size or format, from which workers train",
        "compss-train shard x=images.npy y=labels.npy --rows 5000 --output train",
        'compss-train shard "train/*.npz" --rows 20000 --format h5 --shuffle-buffer 50000 --output mixed',
        'compss-train shard "plants/*.csv" --keys height,width,kind --rows 5000 --output plants',
    )
    kinds = ".npz, .npy, .pt, .h5, .parquet, .arrow, .csv"
    inputs = f"files of one kind ({kinds}) or quoted patterns, or NAME=FILE.npy for each array"
    shard.add_argument("inputs", nargs="+", metavar="INPUT", help=inputs)
    shard.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="folder of the new files")
    shard.add_argument("--rows", type=int, required=True, help="samples per file")
    keys = "arrays or columns to write (default: all); strings become the numbers of their classes"
    shard.add_argument("--keys", type=_comma_separated, metavar="NAME,...", help=keys)
    shard.add_argument("--format", choices=FORMATS, default=FORMATS[0], help="format of the files (default: npz)")
    buffer = "shuffle the samples, in two buffers of this size (default: keep their order)"
    shard.add_argument("--shuffle-buffer", type=int, metavar="SAMPLES", help=buffer)
    shard.add_argument("--seed", type=int, default=0, help="seed of --shuffle-buffer (default: 0)")

    send = add("send", "send samples that a solver writes to standard output to a fit_online, through a pipe")
    send.add_argument("address", help="address= of fit_online, tcp://HOST:PORT")
    send.add_argument("--x", required=True, metavar="SHAPE", help="shape of a sample's x, such as 6 or 3x64x64")
    send.add_argument("--y", metavar="SHAPE", help="shape of its y (default: no y)")
    dtype = "dtype of x and y, in this machine's byte order (default: float32)"
    send.add_argument("--dtype", choices=DTYPES, default=DTYPES[0], help=dtype)
    send.add_argument("--steps", action="store_true", help="each record starts with its time step, an int64")
    name = "name of this stream: samples that arrived under it before are not sent again"
    send.add_argument("--name", help=name)
    send.add_argument("--token", help=f"token= of fit_online (default: environment variable {TOKEN_VARIABLE})")
    timeout = "seconds to wait for the fit to start (default: 60)"
    send.add_argument("--timeout", type=float, default=60.0, help=timeout)


def _add_doctor(add: AddCommand) -> None:
    doctor = add(
        "doctor", "check what the compss engine needs, here and on the nodes, with advice for what is missing"
    )
    doctor.add_argument("--project", type=Path, metavar="FILE", help="the project.xml for runcompss")
    doctor.add_argument("--resources", type=Path, metavar="FILE", help="the resources.xml for runcompss")
    nodes = "hosts to check (default: those of --project)"
    doctor.add_argument("--nodes", type=_comma_separated, default=(), metavar="HOST,...", help=nodes)
    python = "the Python of the nodes (default: this one)"
    doctor.add_argument("--python", metavar="FILE", default=sys.executable, help=python)
    doctor.add_argument("--json", action="store_true", help="print JSON")

    configure = add(
        "configure", "write project.xml and resources.xml for runcompss: workers, their units, GPUs and ports"
    )
    where = configure.add_mutually_exclusive_group()
    nodes = "workers on this machine, on loopback addresses (default: 1)"
    where.add_argument("--nodes", type=int, default=1, help=nodes)
    hosts = "one worker on each of these machines"
    where.add_argument("--hosts", type=_comma_separated, metavar="HOST,...", help=hosts)
    units = "CPU units of a worker (default: its share of the physical cores)"
    configure.add_argument("--units", type=int, help=units)
    configure.add_argument("--gpus", type=int, default=0, help="GPUs of a worker (default: 0)")
    folder = "folder of the two files (default: the current one)"
    configure.add_argument("--folder", type=Path, metavar="FOLDER", default=Path(), help=folder)
    install = "installation folder of COMPSs on the workers (default: as on this machine)"
    configure.add_argument("--install-dir", type=Path, metavar="FOLDER", help=install)
    working = "working folder of the workers (default: a folder of your own in /tmp)"
    configure.add_argument("--working-dir", type=Path, metavar="FOLDER", help=working)
    port = "first port of the first worker (default: free ports here, 44001 on --hosts)"
    configure.add_argument("--first-port", type=int, help=port)


def _add_completion(add: AddCommand) -> None:
    shell = add(
        "completion",
        "print a script that lets the shell complete this command",
        "bash:  compss-train completion bash > ~/.local/share/bash-completion/completions/compss-train",
        "zsh:   compss-train completion zsh > ~/.zsh/completions/_compss-train    (a folder in $fpath)",
        "tcsh:  compss-train completion tcsh > ~/.compss-train.csh; echo source ~/.compss-train.csh >> ~/.tcshrc",
    )
    shell.add_argument("shell", choices=SHELLS, help="the shell that runs the script")


def _comma_separated(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"give names separated by commas, not {text!r}")
    return names


def completion(options: argparse.Namespace) -> int:
    """Print a script that completes commands, options and file names in a shell."""
    shtab = import_optional("shtab", extra="completion", needed_by="completion")
    (commands,) = [action for action in options.parser._actions if action.dest == "command"]
    for action in (action for command in commands.choices.values() for action in command._actions):
        if action.metavar in (*FILES, *FOLDERS):
            action.complete = shtab.FILE if action.metavar in FILES else shtab.DIRECTORY
    print(shtab.complete(options.parser, shell=options.shell))
    return 0
