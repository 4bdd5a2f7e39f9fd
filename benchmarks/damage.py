"""What damage does: mutated files of a run, flipped bits and nonsense command lines.

``python benchmarks/damage.py [MUTATIONS] [SEED]`` trains a small run, then damages one file at a
time and runs a command that reads it. The outcome must be an error, the numbers of before, or
others with a warning. Tracebacks and other numbers without a word are printed, and make the exit
code 1.
"""

import contextlib
import io
import json
import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from compss_train.cli import main
from compss_train.cli.fit import spirals
from compss_train.data.writing import write_files

RUN = """
trainer = { num_workers = 2, engine = "serial", seed = 1 }
network = { import = "torch.nn:Linear", in_features = 2, out_features = 3 }
data = { import = "compss_train.cli.fit:spirals", samples = 60 }
validation = { fraction = 0.5 }
build = { optimizer = { optimizer = "sgd", lr = 0.1 }, loss = "cross_entropy", metric = "accuracy" }
fit = { num_epochs = 3, batch_size = 10, progress = false }
output = { csv = true, report = false }
"""
VALUES = [
    *(None, True, -1, 0, 5, 1e300, 10**400, -0.5, float("nan")),
    *("", "text", "\x1b[2J", [], {}, [1], {"a": 1}),
]
"""What replaces a value of JSON."""
COMMANDS = ("fit", "evaluate", "predict", "report", "plot", "compare", "runs", "advise", "shard")
OPTIONS = ("--output", "--data", "--input", "-o", "--set", "--json", "--best", "--rows", "--resume")
WORDS = (*COMMANDS, *OPTIONS, "run", "x.npy", "fit.num_epochs=x", "/", "nowhere", "-1", "", "\0")
"""What nonsense command lines are made of."""
READERS = {
    "history.jsonl": ("report", "compare", "runs", "advise", "plot"),
    "configuration.json": ("report", "compare", "runs"),
    "config.toml": ("evaluate",),
    "run.json": ("runs", "report", "evaluate"),
    "parameters.safetensors": ("evaluate",),
    "checkpoints/*/state.json": ("evaluate", "evaluate --best"),
    "checkpoints/*/arrays.safetensors": ("evaluate", "evaluate --best"),
    "checkpoints/*/history-*.jsonl": ("evaluate", "evaluate --best"),
}
"""The commands that read each file of a run."""


class Outcome(NamedTuple):
    """What a command did."""

    code: int
    """Exit code; -1 after a traceback."""
    printed: str
    errors: str
    """Its warnings and errors."""
    traceback: str
    """Empty if there was none."""


def called(arguments: Sequence[str]) -> Outcome:
    """Run a command in this process."""
    out = io.StringIO()
    err = io.StringIO()
    failure = ""
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(list(arguments))
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            code = -1
            failure = traceback.format_exc()
    return Outcome(code, out.getvalue(), err.getvalue(), failure)


def command_of(reader: str, folder: Path) -> list[str]:
    """Return the arguments of a command that reads a run.

    Files that it writes lie beside the run.
    """
    name, *flags = reader.split()
    arguments = [name, str(folder), *flags]
    if name == "report":
        arguments += ["-o", str(folder.with_name("page.html"))]
    if name == "plot":
        arguments += ["-o", str(folder.with_name("plot.png"))]
    if name == "evaluate":
        arguments += ["--json", "--trust"]
    return arguments


def mutated_json(text: str, draw: random.Random) -> str:
    """Return JSON, or lines of it, in which a value, a key or a piece of text has changed."""
    lines = text.splitlines()
    if not all(line.startswith("{") for line in lines):
        return _mutated_document(text, draw)
    number = draw.randrange(len(lines))
    lines[number] = _mutated_document(lines[number], draw)
    return "\n".join(lines) + "\n"


def _mutated_document(text: str, draw: random.Random) -> str:
    document = json.loads(text)
    place: Any = document
    while True:
        key = draw.choice(list(place) if isinstance(place, dict) else range(len(place)))
        value = place[key]
        if not (isinstance(value, dict | list) and value and draw.random() < 0.7):
            break
        place = value
    if draw.random() < 0.2:
        del place[key]
    else:
        place[key] = draw.choice(VALUES)
    return json.dumps(document)


def flipped(content: bytes, draw: random.Random) -> bytes:
    """Return the bytes with one bit flipped, or cut off."""
    if draw.random() < 0.1:
        return content[: draw.randrange(len(content))]
    place = draw.randrange(len(content))
    changed = bytes([content[place] ^ (1 << draw.randrange(8))])
    return content[:place] + changed + content[place + 1 :]


class Report:
    """Counts outcomes, and prints the bad ones: tracebacks, and other numbers without a word."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self.bad = 0

    def show(self, words: str, file: Path | None = None) -> None:
        """Print a bad outcome, with the beginning of the file that was read."""
        self.bad += 1
        print(words[-1500:], flush=True)
        if file is not None:
            print(file.read_bytes()[:300], flush=True)


def damage_run(folder: Path, mutations: int, draw: random.Random, report: Report) -> None:
    """Damage the files of a run, one at a time, and count what the commands make of it."""
    killed = folder.with_name("killed")  # without parameters, so that checkpoints are read
    shutil.copytree(folder, killed, ignore=shutil.ignore_patterns("parameters.safetensors"))
    healthy = {
        reader: called(command_of(reader, folder)).printed
        for readers in READERS.values()
        for reader in readers
    }
    for _ in range(mutations):
        name = draw.choice(list(READERS))
        run = killed if name.startswith("checkpoints") else folder
        file = draw.choice(sorted(run.glob(name)))
        reader = draw.choice(READERS[name])
        content = file.read_bytes()
        is_plain_json = file.suffix in (".json", ".jsonl") and not name.startswith("checkpoints")
        if is_plain_json and draw.random() < 0.7:
            file.write_bytes(mutated_json(content.decode(), draw).encode())
        else:
            file.write_bytes(flipped(content, draw))
        outcome = called(command_of(reader, run))
        kind = f"exit {outcome.code}"
        has_other_numbers = (
            outcome.code == 0
            and reader.startswith("evaluate")
            and outcome.printed != healthy[reader]
        )
        if outcome.traceback:
            kind = "traceback"
        elif has_other_numbers:
            kind += ", other numbers"
        report.counts[f"{name}: {kind}"] += 1
        is_silent = has_other_numbers and not outcome.errors
        if outcome.traceback or (is_silent and name != "config.toml"):  # which the user writes
            report.show(f"{name}, {reader}: {kind} {outcome.traceback or outcome.printed}", file)
        file.write_bytes(content)


def main_of_script(mutations: int = 2000, seed: int = 0) -> int:
    draw = random.Random(seed)
    report = Report()
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        Path("run.toml").write_text(RUN)
        x, y = spirals(60)
        write_files("files", {"x": x, "y": y}, rows=20)
        if called(["fit", "run.toml"]).code != 0:
            raise RuntimeError("the run could not be trained")
        shutil.copytree("runs/run", "run")
        damage_run(Path("run").absolute(), mutations, draw, report)
        for _ in range(mutations // 4):
            arguments = [draw.choice(WORDS) for _ in range(draw.randint(1, 5))]
            outcome = called(arguments)
            kind = "traceback" if outcome.traceback else f"exit {outcome.code}"
            report.counts[f"command lines: {kind}"] += 1
            if outcome.traceback:
                report.show(f"{arguments}: {outcome.traceback}")
    for kind, count in sorted(report.counts.items()):
        print(f"{count:6} {kind}")
    print(f"{report.counts.total()} mutations, {report.bad} tracebacks or other numbers")
    return min(1, report.bad)


if __name__ == "__main__":
    sys.exit(main_of_script(*map(int, sys.argv[1:3])))
