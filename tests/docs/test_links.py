"""What the documents point to is there, and every page can be found."""

import re
from pathlib import Path

import pytest

from compss_train import __version__
from tests.helpers.documents import ROOT

DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
LINK = re.compile(r"!?\[[^\]\n]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def text_of(document: Path) -> str:
    return CODE.sub("", document.read_text(encoding="utf-8"))


def anchors(document: Path) -> set[str]:
    """The headings as pages of Git hosts name them."""
    headings = re.findall(r"^#+ +(.+)$", text_of(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(document: Path) -> list[str]:
    found = []
    for link in LINK.findall(text_of(document)):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_links_lead_somewhere(document):
    assert broken(document) == []


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A heading, here\n[a](#a-heading-here) [b](#nothing) [c](page.md) [d](gone.md)\n")
    assert broken(page) == ["#nothing", "gone.md"]


def test_every_page_is_in_the_indexes():
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "tutorials").glob("*.ipynb")]
    readme = LINK.findall(text_of(ROOT / "README.md"))
    assert [page for page in pages if str(page.relative_to(ROOT)) not in readme] == []
    pages += (ROOT / "docs" / "reference").glob("*.md")
    site = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    missing = [page for page in pages if str(page.relative_to(ROOT / "docs").with_suffix(".md")) not in site]
    assert missing == []


def test_the_citation_is_of_this_version():
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_files_that_the_documents_name_are_there():
    """Names in code such as `apps/digits.py`, of the folders that a checkout has."""
    named = re.compile(r"`((?:apps|benchmarks|docs|runcompss|tests|compss_train)/[\w./-]+)`")
    for document in DOCUMENTS:
        if document.name == "CHANGELOG.md":  # it names what was there
            continue
        missing = [name for name in named.findall(text_of(document)) if not (ROOT / name.rstrip("/")).exists()]
        assert missing == [], document.name
