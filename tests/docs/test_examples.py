"""The examples of the documents run as printed; those of docs/online.md have a module of their own."""

import re

import pytest

from compss_train.engines import CompssEngine
from compss_train.reports.history import History
from compss_train.training.merging.synchronous import best_arity
from tests.helpers.documents import ROOT, python_blocks

PRINTED = {
    "README.md": r"'accuracy'",
    "docs/quick-start.md": r"'accuracy'",
    "docs/training.md": r"'accuracy'",
    "docs/files.md": r"'accuracy'",
    "docs/datasets.md": r"^\(300, 2\)\n.*\n\[120, 80, 120, 80\]\n$",
    "docs/parameter-server.md": r"^\[array\(\[1., 1., 1.\]\)\]\n\[(0.8999999761581421(, |\])){2}\n10.0\n$",
    "docs/metrics.md": r"'confidence'(.|\n)*\n(0\.[5-9]|1\.0).*\n$",
    "docs/training-options.md": r"^\[0.004, 0.082, 0.097, 0.081, 0.056, 0.028, 0.008, 0.0\]\n1\n",
    "docs/models.md": r"^\['accuracy', 'sparsity', 'val_accuracy'\]\ndict_keys\(\['loss'\]\)\n"
    r"\{'like': \(400, 2\), 'stars': \(400,\)\}\n200 \(1, 20\)\n$",
    "docs/learning.md": r"^100 1 batches average \{'optimizer': 'sgd'",
    "docs/scikit-learn.md": r"^0\.9[4-9].*\n\(3, 10\)\n\(450, 64\)\n"
    r"\{'num_epochs': 8, 'optimizer__lr': 0.01, 'optimizer__momentum': 0.9\}\n$",
}
"""What the examples of each document print, as one script."""
AFTER_THE_README = {
    "docs/buffers.md": r"\[ *0 +\d+",
    "docs/watching.md": r'\n\{\n(.|\n)*"num_epochs": 2',
    "docs/trackers.md": r"\n[0-9a-f]{32}\n.*COMPLETE.*",
}
"""What the examples of documents print that go on from the first example of README.md."""
PACKAGES = {"docs/datasets.md": ("pandas", "datasets"), "docs/trackers.md": ("mlflow", "sqlalchemy", "optuna")}


def test_every_page_with_examples_is_run_by_some_test():
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for page in (ROOT / "docs").glob("*.md"):
        if python_blocks(f"docs/{page.name}"):
            assert f"docs/{page.name}" in tests or f'"{page.stem}"' in tests, page.name


@pytest.mark.filterwarnings("ignore:.*float64 becomes float32")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("document", [*PRINTED, *AFTER_THE_README])
def test_examples_run_as_printed(run_blocks, document, tmp_path):
    for package in PACKAGES.get(document, ()):
        pytest.importorskip(package)
    blocks = python_blocks(document)
    assert blocks
    if document in PRINTED:
        assert re.search(PRINTED[document], run_blocks(blocks))
        return
    assert re.search(AFTER_THE_README[document], run_blocks([python_blocks("README.md")[0], *blocks]))
    if document == "docs/watching.md":
        assert len(History.load(tmp_path / "history.jsonl")) == 5
        assert len(History.load(tmp_path / "run" / "history.jsonl")) == 2
        files = {path.name for path in (tmp_path / "run").iterdir()}
        assert files == {"history.jsonl", "history.csv", "board", "report.html"}


def test_the_example_of_long_runs_ends_once(run_blocks):
    blocks = python_blocks("docs/long-runs.md")
    assert [run_blocks(blocks) for _ in range(2)] == ["None None\n", "None run/checkpoints/round-000009\n"]


def test_the_picture_of_a_report_exists_and_is_small():
    assert "(report.png)" in (ROOT / "docs/watching.md").read_text()
    assert 10_000 < (ROOT / "docs/report.png").stat().st_size < 200_000


def test_the_tables_of_scale_are_what_its_programs_print(run_blocks):
    lines = run_blocks(python_blocks("docs/scale.md")).splitlines()
    assert len(lines) == 9 + 5
    assert "\n".join(lines[:9]) in (text := (ROOT / "docs" / "scale.md").read_text())
    assert "\n".join(lines[9:]) in text
    assert f"ARITY = {best_arity(CompssEngine.traits.task_seconds, 100_000_000)} " in text
