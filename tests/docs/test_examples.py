"""The examples of the documents run as printed; those of docs/online.md have a module of their own."""

import json
import re

import pytest

from compss_train.engines import CompssEngine
from compss_train.reports.history import History
from compss_train.training.merging.synchronous import best_arity
from tests.helpers.documents import ROOT, python_blocks


def test_every_page_with_examples_is_run_by_some_test():
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for page in (ROOT / "docs").glob("*.md"):
        if python_blocks(f"docs/{page.name}"):
            assert f"docs/{page.name}" in tests or f'"{page.stem}"' in tests, page.name


@pytest.mark.parametrize(
    ("document", "least"), {"README.md": 1, "docs/quick-start.md": 1, "docs/training.md": 5}.items()
)
def test_the_examples_of_a_first_training_run_as_printed(run_blocks, document, least):
    blocks = python_blocks(document)
    assert len(blocks) >= least
    assert "'accuracy'" in run_blocks(blocks)


def test_the_example_of_long_runs_ends_once(run_blocks):
    blocks = python_blocks("docs/long-runs.md")
    assert [run_blocks(blocks) for _ in range(2)] == ["None None\n", "None run/checkpoints/round-000009\n"]


def test_the_examples_of_buffers_run_after_the_readmes_first(run_blocks):
    blocks = python_blocks("docs/buffers.md")
    assert len(blocks) >= 3
    assert re.search(r"\[ *0 +\d+", run_blocks([python_blocks("README.md")[0], *blocks]))


def test_the_examples_of_files_run_as_printed(run_blocks):
    blocks = python_blocks("docs/files.md")
    assert len(blocks) >= 3
    assert "'accuracy'" in run_blocks(blocks)


@pytest.mark.filterwarnings("ignore:.*float64 becomes float32")
def test_the_examples_of_data_sets_run_as_printed(run_blocks):
    for package in ("pandas", "datasets"):
        pytest.importorskip(package)
    shape, _, samples = run_blocks(python_blocks("docs/datasets.md")).splitlines()
    assert (shape, samples) == ("(300, 2)", "[120, 80, 120, 80]")


def test_the_examples_of_parameter_servers_run(run_blocks):
    blocks = python_blocks("docs/parameter-server.md")
    assert len(blocks) >= 3
    printed = run_blocks(blocks).splitlines()
    assert printed == ["[array([1., 1., 1.])]", str([0.8999999761581421] * 2), "10.0"]


def test_the_examples_of_metrics_run(run_blocks):
    blocks = python_blocks("docs/metrics.md")
    assert len(blocks) >= 2
    printed = run_blocks(blocks)
    assert "'confidence'" in printed
    assert float(printed.splitlines()[-1].split()[0]) > 0.5


def test_the_examples_of_training_options_run(run_blocks):
    blocks = python_blocks("docs/training-options.md")
    assert len(blocks) >= 3
    printed = run_blocks(blocks).splitlines()
    assert printed[:2] == ["[0.004, 0.082, 0.097, 0.081, 0.056, 0.028, 0.008, 0.0]", "1"]


def test_the_examples_of_models_run(run_blocks):
    blocks = python_blocks("docs/models.md")
    assert len(blocks) >= 3
    printed = run_blocks(blocks).splitlines()
    assert printed[0] == "['accuracy', 'sparsity', 'val_accuracy']"
    assert printed[1] == "dict_keys(['loss'])"
    assert printed[2:] == ["{'like': (400, 2), 'stars': (400,)}", "200 (1, 20)"]


def test_the_example_of_learning_prints_what_was_chosen(run_blocks):
    printed = run_blocks(python_blocks("docs/learning.md"))
    assert printed.startswith("100 1 batches average {'optimizer': 'sgd'")


def test_the_examples_of_scikit_learn_run(run_blocks):
    blocks = python_blocks("docs/scikit-learn.md")
    assert len(blocks) == 4
    score, *shapes, best, in_blocks = run_blocks(blocks).splitlines()
    assert float(score) > 0.94
    assert shapes == ["(3, 10)", "(450, 64)"]
    assert best == "{'num_epochs': 8, 'optimizer__lr': 0.01, 'optimizer__momentum': 0.9}"
    assert float(in_blocks) > 0.95


def test_the_examples_of_watching_run_after_the_readmes_first(run_blocks, tmp_path):
    blocks = python_blocks("docs/watching.md")
    assert len(blocks) >= 4
    printed = run_blocks([python_blocks("README.md")[0], *blocks])
    assert json.loads(printed[printed.index("\n{\n") :])["fit"]["num_epochs"] == 2
    assert len(History.load(tmp_path / "history.jsonl")) == 5
    assert len(History.load(tmp_path / "run" / "history.jsonl")) == 2
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert files == {"history.jsonl", "history.csv", "board", "report.html"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
def test_the_examples_of_trackers_run_after_the_readmes_first(run_blocks):
    for package in ("mlflow", "sqlalchemy", "optuna"):
        pytest.importorskip(package)
    blocks = python_blocks("docs/trackers.md")
    assert len(blocks) == 2
    *_, run_id, study = run_blocks([python_blocks("README.md")[0], *blocks]).splitlines()
    assert len(run_id) == 32
    assert "COMPLETE" in study
    assert "lr" in study


def test_the_picture_of_a_report_exists_and_is_small():
    assert "(report.png)" in (ROOT / "docs/watching.md").read_text()
    assert 10_000 < (ROOT / "docs/report.png").stat().st_size < 200_000


def test_the_tables_of_scale_are_what_its_programs_print(run_blocks):
    lines = run_blocks(python_blocks("docs/scale.md")).splitlines()
    assert len(lines) == 9 + 5
    assert "\n".join(lines[:9]) in (text := (ROOT / "docs" / "scale.md").read_text())
    assert "\n".join(lines[9:]) in text
    assert f"ARITY = {best_arity(CompssEngine.traits.task_seconds, 100_000_000)} " in text
