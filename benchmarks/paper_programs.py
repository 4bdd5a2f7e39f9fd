"""The programs of the paper that dislib's training comes from, with their own dislib and with ours.

"Scalable Neural Network Training: Distributed Data-Parallel Approaches" (WACCPD at SC25) has 48
programs on a public forge: 13 regressions and 35 classifications, on 1 to 64 workers. Give a
checkout of them, and one of dislib, of which the programs bring parts. They stay as they are,
except for the import, the data, the sizes of networks and fits, the CPU where there is no GPU, and
known typing errors. Their forks of dislib crop, flip and clip in every task, which ours gets as two
arguments of ``build``.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import _paper_parts
import numpy as np
import torch
from _applications import Runtime, call, has_compss
from _common import environment, parsed, parser, print_table, ratios, spread
from _nodes import Network, compss_in, nodes_of, skip_without_network

THEIRS = "dislib"
OURS = "ours"
IMPORT = re.compile(r"from dislib\.pytorch\S* import EncapsulatedFunctionsDistributedPytorch")
"""How the programs import their class."""
OUR_IMPORT = "from compss_train.integrations.dislib import EncapsulatedFunctionsDistributedPytorch"
"""How they import ours."""
REPAIRS = {
    "ds.data.tensor,from_pt_tensor": "ds.data.tensor.from_pt_tensor",
    "assign_weigths_to_model": "assign_weights_to_model",
    "from dislib.data.tensor import tensor_from_ds_array": "",  # unused, and in no dislib
    "from dislib.utils import train_test_split": "",  # the same
}
"""Typing errors of the programs and of their forks."""
NEWER = {"columns=data.columns[0], axis=1": "columns=data.columns[0]"}
"""What today's pandas takes."""
UNITS = {
    'computing_units="20"': 'computing_units="${ComputingUnits}"',
    'computing_units="10"': 'computing_units="${ComputingUnits}"',
}
"""Units of the forks' tasks that cut tensors: a machine with fewer would wait for ever."""
TEST_BLOCKS = {
    "block_size=(15000, 10)": "block_size=y_test.shape",
    "block_size=(500000, 1)": "block_size=y_test.shape",
}
"""Blocks that are larger than small data."""
CPU = {'"cuda:0"': '"cpu"', "'cuda:0'": "'cpu'"}
NO_TORCHVISION = {
    "import torchvision.transforms.functional as Trans_F": "import _paper_parts as Trans_F",
    "from torchvision import datasets, transforms": "",
    "from torchvision import transforms": "",
    "from torchvision.transforms.functional import rotate, affine": "",
}
PARTS = "train_transform=_paper_parts.crop_and_flip, gradient_clipping=_paper_parts.clip"
"""Arguments of ``build`` for what the forks' tasks do with each batch."""
RESULTS = {"regression": "MSE", "classification": "Accuracy"}
"""What programs print of their result: a number to be small, or to be large."""
CLASSES = 10
COLUMNS = 8
TARGET = "Intensity Value 3s"


@dataclass(frozen=True)
class Sizes:
    """Sizes of data, networks and fits."""

    rows: int
    pixels: int
    narrow: int
    batch: int
    batches: int
    epochs: int


@dataclass(frozen=True)
class Program:
    """One of the programs."""

    path: Path
    fork: Path
    """The folder of the part of dislib that it brings."""

    @property
    def kind(self) -> str:
        """Regression or classification."""
        return "regression" if self.path.name.startswith("train_everything") else "classification"

    @property
    def name(self) -> str:
        """The folders of the program, without those that many share."""
        parts = [self.kind[:5]]
        if "Losses" in self.fork.parent.name:
            parts.append("curves")
        parts += [part for part in self.path.parent.parts if part not in self.fork.parent.parts]
        return "/".join(parts)

    @property
    def workers(self) -> int:
        """The workers that it trains with."""
        match = re.search(r"num_workers=(\d+)", self.path.read_text())
        return int(match[1]) if match else 1

    @property
    def copies(self) -> int:
        """How often it trains the rows in an epoch: some concatenate them with themselves."""
        return max(1, len(re.findall(r"torch\.load\(x_train\)", self.path.read_text())))


def programs(checkout: Path) -> list[Program]:
    """Return the programs of a checkout, in the order of their names."""
    unsorted = []
    for pattern in ("train_everything*.py", "distributed_training*.py"):
        for path in checkout.rglob(pattern):
            forks = [folder / "dislib" for folder in path.parents if (folder / "dislib").is_dir()]
            if forks:
                unsorted.append(Program(path, forks[0]))

    def key(program: Program) -> tuple[str, list[str], int]:
        return program.kind, program.name.split("/")[:-1], program.workers

    return sorted(unsorted, key=key)


# -- copies of programs


def replaced(text: str, table: Mapping[str, str]) -> str:
    """Return a text with all replacements of a table."""
    for old, new in table.items():
        text = text.replace(old, new)
    return text


def common_replacements() -> dict[str, str]:
    """Return what is replaced in programs and forks on this machine."""
    table = REPAIRS | NEWER | UNITS | TEST_BLOCKS
    if not torch.cuda.is_available():
        table |= CPU
    if importlib.util.find_spec("torchvision") is None:
        table |= NO_TORCHVISION
    return table


def copied_program(
    program: Program, side: str, sizes: Sizes, folder: Path, *, with_parts: bool
) -> Path:
    """Copy a program with its modules, in the sizes of the benchmark."""
    for path in program.path.parent.glob("*.py"):
        text = replaced(path.read_text(), common_replacements())
        if path.name == "NFNet.py":
            text = narrowed(text, sizes.narrow)
        elif path == program.path:
            text = resized(text, sizes)
            if side == OURS:
                text, number = IMPORT.subn(OUR_IMPORT, text)
                if number != 1:
                    raise ValueError(f"{path} imports dislib's class {number} times")
                if with_parts and program.kind == "classification":
                    text = text.replace("scheduler=scheduler,", f"scheduler=scheduler, {PARTS},")
                    text = f"import _paper_parts\n{text}"
        (folder / path.name).write_text(text)
    shutil.copy(_paper_parts.__file__, folder)
    return folder / program.path.name


def resized(text: str, sizes: Sizes) -> str:
    """Return a program with the batches, epochs and rows of the benchmark."""
    text = re.sub(r"\b2543, 32\b", f"{sizes.batches}, {sizes.epochs}", text)
    text = re.sub(r"\bnum_batches, 50\b", f"num_batches, {sizes.epochs}", text)
    text = re.sub(r"\bindexes ?= ?128\b", f"indexes = {sizes.batch}", text)
    return re.sub(r"\bT_max=100\b", f"T_max={2 * sizes.epochs}", text)


def narrowed(text: str, divisor: int) -> str:
    """Return the module of NFNet with fewer channels."""
    head, start, body = text.partition("class NFNet(")
    channels = r"\b(32|64|128|256|512|1024)\b"
    return head + start + re.sub(channels, lambda match: str(int(match[0]) // divisor), body)


def copied_dislib(checkout: Path, fork: Path, folder: Path) -> Path:
    """Copy dislib, with a fork's part of it over it; return the folder to import it from."""
    if not (folder / "dislib").exists():
        shutil.copytree(checkout / "dislib", folder / "dislib")
        shutil.copytree(
            fork,
            folder / "dislib",
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        for path in (folder / "dislib").rglob("*.py"):
            path.write_text(replaced(path.read_text(), common_replacements()))
    return folder


# -- data


def write_data(folder: Path, sizes: Sizes) -> dict[str, list[str]]:
    """Write data that can be learned; return the arguments of each kind of program."""
    return {
        "regression": _write_tables(folder, sizes),
        "classification": _write_images(folder, sizes),
    }


def _write_tables(folder: Path, sizes: Sizes) -> list[str]:
    random = np.random.default_rng(0)
    files = []
    for part, rows in (("all", 2 * sizes.rows), ("train", sizes.rows), ("test", sizes.rows // 4)):
        x = random.random((rows, COLUMNS))
        noise = 0.05 * random.standard_normal(rows)
        y = np.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.5 * x[:, 3] ** 2 + noise
        names = [f"column {number}" for number in range(COLUMNS)] + [TARGET]
        lines = [f",{','.join(names)}"]
        for row, values in enumerate(np.column_stack([x, y])):
            lines.append(f"{row},{','.join(f'{value:.6f}' for value in values)}")
        file = folder / f"{part}.csv"
        file.write_text("\n".join(lines) + "\n")
        files.append(str(file))
    return files


def _write_images(folder: Path, sizes: Sizes) -> list[str]:
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(CLASSES, 3, 2, 2, generator=generator)
    patterns = torch.nn.functional.interpolate(coarse, sizes.pixels, mode="bilinear")
    files = []
    for part, rows in (("train", sizes.rows), ("test", sizes.rows // 4)):
        classes = torch.randint(0, CLASSES, (rows,), generator=generator)
        noise = 2 * torch.randn(rows, 3, sizes.pixels, sizes.pixels, generator=generator)
        targets = classes if part == "train" else torch.nn.functional.one_hot(classes, CLASSES)
        images = (patterns[classes] + noise).sigmoid()
        for name, tensor in ((f"x_{part}", images), (f"y_{part}", targets)):
            file = folder / f"{name}.pt"
            torch.save(tensor, file)
            files.append(str(file))
    return files


# -- runs


def outcome(program: Program, result: Mapping[str, Any], rows: int) -> dict[str, float]:
    """Return the numbers that a program has printed, and the seconds of an epoch.

    These are those after the first round.
    """
    printed = result["printed"]
    seconds = re.search(r"Time used to train NN: (\S+)", printed)
    score = re.search(rf"^{RESULTS[program.kind]}: (\S+)", printed, re.MULTILINE)
    if seconds is None or score is None:
        raise RuntimeError(f"{program.name} printed no result:\n{printed[-2000:]}")
    numbers = {"seconds": float(seconds[1]), "result": float(score[1])}
    later_rates = result["rates"][1:]
    if later_rates:
        numbers["epoch"] = program.copies * rows / median(later_rates)
    return numbers


class Runner:
    """Runs programs under COMPSs where there is one, otherwise in plain Python."""

    def __init__(
        self, options: argparse.Namespace, folder: Path, network: Network | None = None
    ) -> None:
        self._options = options
        self._folder = folder
        self._network = network
        self.sizes = Sizes(**{name: getattr(options, name) for name in Sizes.__dataclass_fields__})
        self._data = write_data(folder, self.sizes)
        home = os.environ.get("COMPSS_HOME")
        self._bindings = [str(Path(home, "Bindings", "python", "3"))] if home else []
        self.compss = shutil.which("runcompss") is not None and not options.plain

    def run(self, program: Program, side: str, seed: int) -> dict[str, float]:
        """Return the training seconds and the final error or accuracy of a program."""
        fork = str(program.fork.relative_to(self._options.checkout)).replace(os.sep, "-")
        dislib = self._folder / "forks" / fork
        dislib.mkdir(parents=True, exist_ok=True)
        copied_dislib(self._options.dislib, program.fork, dislib)
        with_parts = not self._options.unchanged
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            path = copied_program(program, side, self.sizes, Path(folder), with_parts=with_parts)
            folders = [folder, str(dislib)]
            variables = {"ComputingUnits": "1", "MPLBACKEND": "Agg"}
            if not torch.cuda.is_available():
                variables["ComputingUnitsGPUs"] = "0"
            runtime = None
            if self.compss:
                units = self._options.units
                hosts = self._network.addresses if self._network else ()
                runtime = Runtime(units, hosts=hosts, pythonpath=folders, environment=variables)
            else:
                variables["PYTHONPATH"] = os.pathsep.join([*folders, *self._bindings, *sys.path])
            arguments = (str(path), self._data[program.kind], seed, 1)
            within = self._network.within(0) if self._network else ()
            with environment(**variables):
                result = call(_paper_parts.run_program, *arguments, runtime=runtime, within=within)
        return outcome(program, result, self.sizes.rows)


def why_not(error: Exception) -> str:
    """Return the line of an error that names it, or its first."""
    lines = str(error).splitlines()
    named = [line.strip() for line in lines if re.match(r"\s*[\w.]*(Error|Exception): ", line)]
    return (named[-1] if named else lines[0])[:150]


def measure(
    runner: Runner, chosen: Sequence[Program], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Run all programs on both sides in turn; return a row for each."""
    rows = []
    for program in chosen:
        row: dict[str, Any] = {"program": program, **{side: [] for side in options.sides}}
        for seed in range(options.repetitions):
            for side in options.sides:
                try:
                    row[side].append(runner.run(program, side, seed))
                except Exception as error:
                    row[f"{side} error"] = why_not(error)
                    if options.verbose:
                        print(error, file=sys.stderr)
        rows.append(row)
        print(" | ".join(cells(row, options.sides)), flush=True)
    return rows


def cells(row: Mapping[str, Any], sides: Sequence[str]) -> list[str]:
    """Return the cells of a row of the table."""
    texts = [row["program"].name]
    for number, form in (("seconds", ".2f"), ("result", ".4f")):
        for side in sides:
            values = spread([run[number] for run in row[side]], form)
            texts.append(row.get(f"{side} error") or values)
    texts.append(spread([run["epoch"] for run in row.get(OURS, ()) if "epoch" in run]))
    ours = [run["seconds"] for run in row.get(OURS, ())]
    theirs = [run["seconds"] for run in row.get(THEIRS, ())]
    texts.append(spread(ratios(ours, theirs)) if len(ours) == len(theirs) else "-")
    return texts


@contextmanager
def emulated(nodes: int, cores: float | None) -> Iterator[Network]:
    """Yield nodes in which COMPSs can start workers.

    They have so many cores, or share the machine's.
    """
    with nodes_of(nodes) as network:
        network.share_cores(cores)
        with network.quota.held(), compss_in(network):
            yield network


def main() -> None:
    options_parser = parser(__doc__, repetitions=3, epochs=4)
    options_parser.add_argument("checkout", type=Path, nargs="?", help="the paper's programs")
    options_parser.add_argument("--dislib", type=Path, help="a checkout of dislib")
    options_parser.add_argument(
        "--only", default="", help="regular expression of the programs to run"
    )
    options_parser.add_argument(
        "--sides", nargs="+", choices=(THEIRS, OURS), default=[THEIRS, OURS], help="sides"
    )
    options_parser.add_argument("--rows", type=int, default=4096, help="rows of training data")
    options_parser.add_argument("--pixels", type=int, default=16, help="width and height of images")
    options_parser.add_argument(
        "--narrow", type=int, default=8, help="divisor of the channels of NFNet"
    )
    options_parser.add_argument("--batch", type=int, default=64, help="rows of a batch of images")
    options_parser.add_argument(
        "--batches", type=int, default=8, help="batches of a block of the regressions"
    )
    options_parser.add_argument(
        "--units", type=int, default=2, help="tasks at a time under COMPSs, on each node"
    )
    options_parser.add_argument(
        "--nodes", type=int, default=1, help="nodes: network namespaces if several, or with --cores"
    )
    options_parser.add_argument("--cores", type=float, help="cores of each node, such as 0.25")
    options_parser.add_argument(
        "--plain", action="store_true", help="plain Python also where there is COMPSs"
    )
    options_parser.add_argument(
        "--unchanged",
        action="store_true",
        help="change nothing but the import: ours does not crop, flip and clip",
    )
    options_parser.add_argument(
        "--verbose", action="store_true", help="print all of the errors of programs"
    )
    options = parsed(options_parser, rows=512, epochs=2)
    if options.checkout is None or options.dislib is None:
        print("SKIPPED: give a checkout of the programs, and --dislib FOLDER")
        return
    is_emulated = options.nodes > 1 or options.cores is not None
    if is_emulated:
        skip_without_network()
        if options.plain or not has_compss():
            return
    all_programs = programs(options.checkout)
    chosen = [program for program in all_programs if re.search(options.only, program.name)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paper_programs-")))
        network = None
        if is_emulated:
            network = stack.enter_context(emulated(options.nodes, options.cores))
        runner = Runner(options, folder, network)
        place = "plain Python"
        if runner.compss:
            place = f"runcompss, {options.nodes} nodes, {options.units} units"
        if options.cores:
            place += f", {options.cores} cores each"
        print(
            f"{len(chosen)} of {len(all_programs)} programs; {place}; "
            f"torch {torch.__version__}; {runner.sizes}"
        )
        rows = measure(runner, chosen, options)
    columns = [f"{what}, {side}" for what in ("training s", "result") for side in options.sides]
    headers = ["program", *columns, "epoch s, ours", "ours to dislib"]
    print_table("Programs of the paper", headers, [cells(row, options.sides) for row in rows])
    for side in options.sides:
        ran = sum(f"{side} error" not in row for row in rows)
        print(f"{side}: {ran} of {len(rows)} programs ran")


if __name__ == "__main__":
    main()
