"""What docs/architecture.md says of the package is so: the files that it names, its order of rooms, its program."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "compss_train"
TEXT = (ROOT / "docs" / "architecture.md").read_text()


def test_the_files_that_it_names_are_there():
    named = {name for name in re.findall(r"`([\w/]+(?:/|\.py))`", TEXT) if not name.startswith("compss_train/")}
    assert len(named) > 30
    assert not [name for name in named if not any(PACKAGE.rglob(name.strip("/"))) and not (ROOT / name).exists()]


def test_its_table_has_the_order_that_lint_checks():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (contract["layers"] for contract in settings["contracts"] if contract["type"] == "layers")
    table = TEXT.partition("## The subpackages")[2].partition("Only `engines/compss`")[0]
    rows = [re.findall(r"`(\w+)/?`", row.split("|")[1]) for row in table.splitlines() if row.startswith("| `")]
    order = [room for row in rows for room in row]
    rank = {room: number for number, layer in enumerate(layers) for room in layer.split(" | ")}
    assert sorted(order) == sorted(rank)
    assert [rank[room] for room in order] == sorted(rank[room] for room in order)


def test_its_counts_hold():
    doors = [path for path in PACKAGE.iterdir() if path.suffix in ("", ".py") and "__" not in path.name]
    files = list(PACKAGE.rglob("*.py"))
    small = [path for path in files if path.name != "__init__.py" and path.read_text().count("\n") < 50]
    assert (len(doors), len(files) <= 300, len(small) <= 28) == (17, True, True)
    assert max(path.read_text().count("\n") for path in files) <= 400


def test_its_program_counts_lines_of_code_and_of_imports():
    program = TEXT.partition("```python\n")[2].partition("```")[0]
    counted = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    code, imports = map(int, counted.stdout.split())
    assert 10_000 < code <= 23_000
    assert 1000 < imports <= 3300
