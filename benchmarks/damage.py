"""What damage does: mutated files of a run, flipped bits and nonsense command lines, thousands of
times.

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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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
    None,
    True,
    -1,
    0,
    5,
    1e300,
    10**400,
    -0.5,
    float("nan"),
    "",
    "text",
    "\x1b[2J",
    [],
    {},
    [1],
    {"a": 1},
]
COMMANDS = ("fit", "evaluate", "predict", "report", "plot", "compare", "runs", "advise", "shard")
OPTIONS = ("--output", "--data", "--input", "-o", "--set", "--json", "--best", "--rows", "--resume")
WORDS = (*COMMANDS, *OPTIONS, "run", "x.npy", "fit.num_epochs=x", "/", "nowhere", "-1", "", "\0")
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


def called(arguments: Sequence[str]) -> tuple[int, str, str, str]:
    """Return the exit code of a command, what it printed, its warnings and errors, and its
    traceback, if any.
    """
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
    return code, out.getvalue(), err.getvalue(), failure


def command_of(reader: str, folder: Path) -> list[str]:
    """Return the arguments of a command that reads a run; files that it writes lie beside the
    run.
    """
    name, *flags = reader.split()
    outputs = {"report": "page.html", "plot": "plot.png"}
    output = ["-o", str(folder.with_name(outputs[name]))] if name in outputs else []
    return [
        name,
        str(folder),
        *flags,
        *output,
        *(["--json", "--trust"] if name == "evaluate" else []),
    ]


def mutated_json(text: str, draw: random.Random) -> str:
    """Return JSON, or lines of it, in which a value, a key or a piece of text has changed."""
    lines = text.splitlines()
    number = draw.randrange(len(lines)) if all(line.startswith("{") for line in lines) else None
    document = json.loads(text if number is None else lines[number])
    place: Any = document
    while True:
        key = draw.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if isinstance(place[key], dict | list) and place[key] and draw.random() < 0.7:
            place = place[key]
            continue
        break
    if draw.random() < 0.2:
        del place[key]
    else:
        place[key] = draw.choice(VALUES)
    changed = json.dumps(document)
    if number is None:
        return changed
    return "\n".join([*lines[:number], changed, *lines[number + 1 :]]) + "\n"


def flipped(content: bytes, draw: random.Random) -> bytes:
    """Return the bytes with one bit flipped, or cut off."""
    if draw.random() < 0.1:
        return content[: draw.randrange(len(content))]
    place = draw.randrange(len(content))
    return (
        content[:place] + bytes([content[place] ^ (1 << draw.randrange(8))]) + content[place + 1 :]
    )


def damage_run(
    folder: Path,
    mutations: int,
    draw: random.Random,
    found: Counter[str],
    show: Callable[..., None],
) -> None:
    """Damage the files of a run, one at a time, and count what the commands make of it."""
    killed = folder.with_name("killed")  # without parameters, so that checkpoints are read
    shutil.copytree(folder, killed, ignore=shutil.ignore_patterns("parameters.safetensors"))
    healthy = {
        reader: called(command_of(reader, folder))[1]
        for readers in READERS.values()
        for reader in readers
    }
    for _ in range(mutations):
        name = draw.choice(list(READERS))
        run = killed if name.startswith("checkpoints") else folder
        file = draw.choice(sorted(run.glob(name)))
        reader = draw.choice(READERS[name])
        content = file.read_bytes()
        by_value = (
            file.suffix in (".json", ".jsonl")
            and not name.startswith("checkpoints")
            and draw.random() < 0.7
        )
        file.write_bytes(
            mutated_json(content.decode(), draw).encode() if by_value else flipped(content, draw)
        )
        code, out, err, failure = called(command_of(reader, run))
        other = code == 0 and reader.startswith("evaluate") and out != healthy[reader]
        silent = other and not err and name != "config.toml"  # which the user writes
        kind = "traceback" if failure else f"exit {code}{', other numbers' if other else ''}"
        found[f"{name}: {kind}"] += 1
        if failure or silent:
            show(f"{name}, {reader}: {kind} {failure or out}", file)
        file.write_bytes(content)


def main_of_script(mutations: int, seed: int) -> int:
    draw = random.Random(seed)
    found = Counter[str]()
    bad = 0

    def show(what: str, file: Path | None = None) -> None:
        nonlocal bad
        bad += 1
        print(
            what[-1500:],
            *([file.read_bytes()[:300]] if file is not None else []),
            sep="\n",
            flush=True,
        )

    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        Path("run.toml").write_text(RUN)
        x, y = spirals(60)
        write_files("files", {"x": x, "y": y}, rows=20)
        if called(["fit", "run.toml"])[0] != 0:
            raise RuntimeError("the run could not be trained")
        shutil.copytree("runs/run", "run")
        damage_run(Path("run").absolute(), mutations, draw, found, show)
        for _ in range(mutations // 4):
            arguments = [draw.choice(WORDS) for _ in range(draw.randint(1, 5))]
            code, *_, failure = called(arguments)
            found[f"command lines: {'traceback' if failure else f'exit {code}'}"] += 1
            if failure:
                show(f"{arguments}: {failure}")
    print(*(f"{count:6} {what}" for what, count in sorted(found.items())), sep="\n")
    print(f"{sum(found.values())} mutations, {bad} tracebacks or other numbers")
    return min(1, bad)


if __name__ == "__main__":
    sys.exit(
        main_of_script(
            *(int(value) for value in (*sys.argv[1:3], *("2000", "0")[len(sys.argv) - 1 :]))
        )
    )
