"""The tutorials are notebooks that were run: their code runs, and prints what is in them but for digits."""

import json
import re

import pytest

from tests.helpers.documents import ROOT

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))


def code_cells(notebook):
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def comparable(text):
    """Without what other machines may round differently."""
    return re.sub(r"\d+|PRUNED  |COMPLETE", "0", text)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("notebook", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_prints_what_it_shows(run_blocks, notebook, monkeypatch):
    code = ["".join(cell["source"]) for cell in code_cells(notebook)]
    for package in ("matplotlib", "optuna"):
        if any(f"import {package}" in block for block in code):
            pytest.importorskip(package)
    monkeypatch.setenv("MPLBACKEND", "agg")
    shown = [output for cell in code_cells(notebook) for output in cell["outputs"]]
    printed = "".join("".join(output.get("text", "")) for output in shown)
    assert comparable(run_blocks(code)) == comparable(printed)


@pytest.mark.parametrize("notebook", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_was_run_whole_and_is_small(notebook):
    cells = code_cells(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output.get("name", "stdout") for output in outputs} == {"stdout"}
    assert "error" not in {output["output_type"] for output in outputs}
    assert notebook.stat().st_size < 100_000
