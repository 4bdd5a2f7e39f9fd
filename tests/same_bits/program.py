"""Runs the kinds, or compares them with those of another checkout.

    python -m tests.same_bits --write BITS.safetensors [--engine serial|local|compss] [NAME ...]
    python -m tests.same_bits --against FOLDER [--engine ...] [--keep FOLDER] [NAME ...]

The second runs the program of each checkout, one after the other, and prints all that differs:
kinds of the other one that are missing here, and arrays that have other bits. FOLDER may also be a
file that ``--write`` has made on this machine. Names are of kinds, or of how they start; ``--list``
prints them. With ``--engine compss`` each program is started by ``runcompss``, which must be on the
PATH.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from compss_train import LocalEngine
from tests.same_bits import other_kinds
from tests.same_bits.comparison import differences, read, write
from tests.same_bits.fitting import Bits, Place

ROOT = Path(__file__).parents[2]
ENGINES = ("serial", "local", "compss")
ON_LOCAL = {
    f"local engine: {name}": name
    for name in (
        *(
            "blocks shuffled",
            "total shuffle",
            "merged in int8, outer optimizer",
            ("optimizers averaged"),
        ),
        *("files, partial shuffle", "FIRO, batches", "transform that draws", "two optimizers"),
        *("several workers a task", "interrupted and resumed"),
    )
}
"""Kinds that run on the local engine, too, whatever the engine of the others."""
KINDS = {**other_kinds.KINDS, **{name: other_kinds.KINDS[kind] for name, kind in ON_LOCAL.items()}}


def chosen(names: Sequence[str]) -> list[str]:
    """Return the kinds of these names, or that start with them; all kinds for none."""
    found = [kind for kind in KINDS if not names or kind.startswith(tuple(names))]
    for name in names:
        if not any(kind.startswith(name) for kind in KINDS):
            raise SystemExit(f"there is no kind {name!r}; --list prints them")
    return found


def run(names: Sequence[str], engine: str) -> tuple[dict[str, Bits], list[str]]:
    """Run these kinds; return their bits, and the names of those that failed. A local engine starts
    once.
    """
    results = {}
    failed = []
    with ExitStack() as stack:
        local = cache(lambda: stack.enter_context(LocalEngine(2)))
        for name in names:
            begun = time.monotonic()
            own = local() if engine == "local" or name in ON_LOCAL else engine
            try:
                with tempfile.TemporaryDirectory() as folder:
                    results[name] = KINDS[name](Place(own, Path(folder), in_order=own == "serial"))
            except Exception:
                failed.append(name)
                print(f"{name}: FAILED\n{traceback.format_exc()}", flush=True)
            else:
                print(f"{name}: {time.monotonic() - begun:.2f} s", flush=True)
    return results, failed


def compare(other: Path, engine: str, names: Sequence[str], kept: Path) -> int:
    """Run the programs of both checkouts; return how much differs, or failed."""
    files = []
    failed = 0
    for checkout in (other, ROOT):
        if checkout.is_file():
            files.append(checkout)
            continue
        files.append(kept / f"{len(files)}-{checkout.name}.safetensors")
        print(f"running {checkout}", flush=True)
        code = subprocess.run(
            [*_command(checkout, engine), "--write", str(files[-1]), "--engine", engine, *names],
            env={**os.environ, "PYTHONPATH": str(checkout)},
            cwd=checkout,
            stdout=None if checkout == ROOT else subprocess.DEVNULL,
            check=False,
        ).returncode
        if code:
            print(f"the program of {checkout} ended with {code}", flush=True)
            failed += 1
        if not files[-1].exists():
            return 1
    theirs, ours = map(read, files)
    theirs = {
        kind: bits for kind, bits in theirs.items() if not names or kind.startswith(tuple(names))
    }
    lines = list(differences(ours, theirs))
    print(*lines, sep="\n")
    new = [kind for kind in ours if kind not in theirs]
    print(
        f"{len(theirs)} kinds compared, {len(lines)} differences; not in the other checkout: "
        f"{new or 'none'}"
    )
    return len(lines) + failed + (not theirs)


def _command(checkout: Path, engine: str) -> list[str]:
    if engine != "compss":
        return [sys.executable, "-m", "tests.same_bits"]
    # Not __main__.py: PyCOMPSs imports a script by the name of its file before it runs it.
    options = (f"--python_interpreter={sys.executable}", f"--pythonpath={checkout}")
    return [
        str(checkout / "runcompss" / "laptop.sh"),
        *options,
        str(checkout / "tests/same_bits/program.py"),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.same_bits", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=("a kind, or how its name starts; by default all")
    )
    parser.add_argument("--engine", choices=ENGINES, default="serial")
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help=("run the kinds and write their bits")
    )
    parser.add_argument(
        "--against", type=Path, metavar="FOLDER", help=("compare with a checkout, or with its file")
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help=("where both files of bits are kept")
    )
    parser.add_argument("--list", action="store_true", help="print the names of the kinds")
    given = parser.parse_args(arguments)
    names = chosen(given.names)
    if given.list:
        print(*names, sep="\n")
        return 0
    if given.against is not None:
        with tempfile.TemporaryDirectory() as folder:
            return min(
                compare(
                    given.against.resolve(), given.engine, given.names, given.keep or Path(folder)
                ),
                1,
            )
    results, failed = run(names, given.engine)
    if given.write is not None:
        write(given.write, results)
    print(f"{len(results)} kinds, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
