"""What documents point to is there, pages can be found, and docs/architecture.md is right."""

import re
import tomllib
from pathlib import Path

import pytest

from compss_train import __version__
from tests.helpers.processes import ROOT

DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
LINK = re.compile(r"!?\[[^\]\n]*\]\(([^)\s]+)\)")
SOURCE = re.compile(r'src(?:set)?="([^"]+)"')
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def text_of(document: Path) -> str:
    return CODE.sub("", document.read_text(encoding="utf-8"))


def anchors(document: Path) -> set[str]:
    """The headings as pages of Git hosts name them."""
    headings = re.findall(r"^#+ +(.+)$", text_of(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(document: Path) -> list[str]:
    links = []
    text = text_of(document)
    for link in LINK.findall(text) + SOURCE.findall(text):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            links.append(link)
    return links


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_links_lead_somewhere(document):
    assert broken(document) == []


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A heading, here\n[a](#a-heading-here) [b](#nothing) [c](page.md) [d](gone.md)\n"
    )
    assert broken(page) == ["#nothing", "gone.md"]


def test_every_page_is_in_the_indexes():
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "tutorials").glob("*.ipynb")]
    readme = LINK.findall(text_of(ROOT / "README.md"))
    assert [page for page in pages if str(page.relative_to(ROOT)) not in readme] == []
    pages += (ROOT / "docs" / "reference").glob("*.md")
    site = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    missing = [
        page
        for page in pages
        if str(page.relative_to(ROOT / "docs").with_suffix(".md")) not in site
    ]
    assert missing == []


def test_the_citation_is_of_this_version():
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_files_that_the_documents_name_are_there():
    """Names in code such as `apps/digits.py`, of the folders that a checkout has."""
    named = re.compile(r"`((?:apps|benchmarks|docs|runcompss|tests|compss_train)/[\w./-]+)`")
    for document in DOCUMENTS:
        if document.name == "CHANGELOG.md":  # it names what was there
            continue
        missing = [
            name
            for name in named.findall(text_of(document))
            if not (ROOT / name.rstrip("/")).exists()
        ]
        assert missing == [], document.name


ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "compss_train"
TEXT = (ROOT / "docs" / "architecture.md").read_text()


def test_the_files_that_it_names_are_there():
    named = {
        name
        for name in re.findall(r"`([\w/]+(?:/|\.py))`", TEXT)
        if not name.startswith("compss_train/")
    }
    assert len(named) > 30
    assert not [
        name
        for name in named
        if not any(PACKAGE.rglob(name.strip("/"))) and not (ROOT / name).exists()
    ]


def test_its_table_has_the_order_that_lint_checks():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (
        contract["layers"] for contract in settings["contracts"] if contract["type"] == "layers"
    )
    table = TEXT.partition("## The subpackages")[2].partition("Only `engines/compss`")[0]
    rows = [
        re.findall(r"`(\w+)/?`", row.split("|")[1])
        for row in table.splitlines()
        if row.startswith("| `")
    ]
    order = [room for row in rows for room in row]
    rank = {room: number for number, layer in enumerate(layers) for room in layer.split(" | ")}
    assert sorted(order) == sorted(rank)
    assert [rank[room] for room in order] == sorted(rank[room] for room in order)
