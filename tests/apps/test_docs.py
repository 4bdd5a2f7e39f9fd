"""The examples of pages that need no further look run as printed; other pages have tests of their own."""

import pytest

from tests.helpers.documents import ROOT, python_blocks


@pytest.mark.parametrize("page", ["quick-start", "training", "long-runs"])
def test_the_examples_run(page, run_blocks):
    blocks = python_blocks(f"docs/{page}.md")
    assert blocks
    run_blocks(blocks)


def test_every_page_with_examples_is_run_by_some_test():
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for page in (ROOT / "docs").glob("*.md"):
        if python_blocks(f"docs/{page.name}"):
            assert f"docs/{page.name}" in tests or f'"{page.stem}"' in tests, page.name
