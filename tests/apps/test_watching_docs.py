"""What docs/watching.md prints works as printed."""

import json

import pytest

from compss_train.reports.history import History
from tests.helpers.documents import ROOT, python_blocks

DOCUMENT = "docs/watching.md"


def test_the_examples_run_after_the_readmes_first(run_blocks, tmp_path):
    blocks = python_blocks(DOCUMENT)
    assert len(blocks) >= 4
    printed = run_blocks([python_blocks("README.md")[0], *blocks])
    assert json.loads(printed[printed.index("\n{\n") :])["fit"]["num_epochs"] == 2
    assert len(History.load(tmp_path / "history.jsonl")) == 5
    assert len(History.load(tmp_path / "run" / "history.jsonl")) == 2
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert files == {"history.jsonl", "history.csv", "board", "report.html"}


@pytest.mark.parametrize("name", ["report.png"])
def test_pictures_are_there_and_small(name):
    assert f"({name})" in (ROOT / DOCUMENT).read_text()
    assert 10_000 < (ROOT / "docs" / name).stat().st_size < 200_000
