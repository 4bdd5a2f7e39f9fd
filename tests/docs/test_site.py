"""The site of the documents: it is made without warnings, needs no other host, and refers to every
public name.
"""

import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.request import urlopen

import pytest

import compss_train
from compss_train import callbacks
from docs.hooks import on_page_markdown
from tests.helpers.processes import ROOT

NAMES = [
    *(f"compss_train.{name}" for name in compss_train.__all__),
    *(f"compss_train.callbacks.{name}" for name in callbacks.__all__),
]


in_the_site = pytest.mark.slow  # "make docs" builds it, too


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(folder),
    ]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    return folder


@in_the_site
def test_the_site_loads_nothing_from_other_hosts(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    loaded = re.compile(
        r"<(?:script|img|iframe)[^>]* src=\"?https?:|<link[^>]* href=\"?https?:[^>]*>"
    )
    for page in pages:
        found = [tag for tag in loaded.findall(page.read_text("utf-8")) if "canonical" not in tag]
        assert found == [], page


@in_the_site
def test_the_site_has_every_public_name_with_what_it_inherits(site):
    reference = "".join(page.read_text("utf-8") for page in (site / "reference").glob("*.html"))
    # A class is referred to where it is offered first: exceptions and some of data by the modules
    # that they are in.
    anchors = {
        anchor.rpartition(".")[2]
        for anchor in re.findall(r'id="(compss_train\.[\w.]+)"', reference)
    }
    assert [name for name in NAMES if name.rpartition(".")[2] not in anchors] == []
    for method in ("fit", "build", "evaluate", "fit_online", "restore", "fit_synchronous_with_GPU"):
        assert f'id="compss_train.DistributedTrainer.{method}"' in reference
    assert re.search(r"doc-section-title\">\s*Parameters:", reference)
    trainer = (site / "reference" / "trainer.html").read_text("utf-8")
    order = re.findall(r'id="compss_train\.DistributedTrainer\.(\w+)"', trainer)
    assert order[:6] == ["build", "fit", "evaluate", "predict", "model", "export"]
    assert all(name.endswith("_with_GPU") for name in order[-8:])


@in_the_site
def test_the_site_has_the_tutorials_with_what_they_draw(site):
    assert "data:image/png;base64," in (site / "tutorials" / "surrogate.html").read_text("utf-8")


@in_the_site
def test_the_site_as_served_can_be_searched_and_begins_with_what_the_project_is(site):
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def read(path):
            with urlopen(f"http://127.0.0.1:{server.server_port}/{path}") as answer:
                return answer.read().decode()

        start = read("index.html")
        config = json.loads(re.search(r'id="__config"[^>]*>(.*?)</script>', start)[1])
        assert "search" in read(config["search"])  # the worker's script
        found = [each["location"] for each in json.loads(read("search/search_index.json"))["docs"]]
        assert all(read(page) for page in {location.partition("#")[0] for location in found[:200]})
        assert "long-runs.html#checkpoints" in found
        server.shutdown()
    assert re.search(r"<h1.*?</h1>\s*<p><code>compss_train</code> trains any", start, re.DOTALL)


def test_what_the_reference_lists_exists():
    listed = [
        name
        for page in (ROOT / "docs" / "reference").glob("*.md")
        for name in re.findall(r"^::: (\S+)$", page.read_text("utf-8"), re.MULTILINE)
    ]
    assert len(listed) == len(set(listed)) > 60
    for name in listed:
        module, _, attribute = name.rpartition(".")
        assert getattr(importlib.import_module(module), attribute).__doc__, name
    offered = {name.rpartition(".")[2] for name in listed}
    assert [name for name in NAMES if name.rpartition(".")[2] not in offered] == []


def markdown_of(name, page):
    """The Markdown of a page of the site."""
    settings = SimpleNamespace(meta={}, file=SimpleNamespace(src_uri=page))
    return on_page_markdown((ROOT / name).read_text("utf-8"), settings)


def test_the_reference_of_the_trainer_lists_all_of_it_and_begins_with_what_users_call():
    page = markdown_of("docs/reference/trainer.md", "reference/trainer.md")
    listed = re.findall(r"'(\w+)'", re.search(r"members: \[(.*)]", page)[1])
    assert listed[:6] == ["build", "fit", "evaluate", "predict", "model", "export"]
    assert all(name.endswith("_with_GPU") for name in listed[-8:])
    public = [name for name in dir(compss_train.DistributedTrainer) if not name.startswith("_")]
    assert sorted(listed) == public


def test_pictures_have_a_variant_for_dark_screens_on_git_hosts_and_on_the_site():
    """The picture of the first screen, which has axes and a background."""
    markdown = markdown_of("README.md", "index.md")
    assert "<picture>" not in markdown
    assert "](network.png#only-light)![" in markdown
    assert "](network-dark.png#only-dark)" in markdown


@pytest.mark.parametrize("words", ["Windows", "reproducible", "cite", "larger than memory"])
def test_the_words_of_users_are_in_headings_that_the_search_prefers(words):
    headings = re.findall(
        r"^## (.+)$", (ROOT / "docs/how-do-i.md").read_text("utf-8"), re.MULTILINE
    )
    assert any(words.lower() in heading.lower() for heading in headings)


def test_every_app_has_a_picture_in_the_gallery():
    gallery = (ROOT / "docs/gallery.md").read_text("utf-8")
    programs = [path for path in (ROOT / "apps").glob("*.py") if "__main__" in path.read_text()]
    for program in programs:
        assert f"`apps/{program.name}`" in gallery, program.name
        assert f"(pictures/{program.stem}.png)" in gallery, program.name


def test_every_public_name_and_module_says_what_it_is():
    for name in NAMES:
        module, _, attribute = name.rpartition(".")
        assert inspect.getdoc(getattr(importlib.import_module(module), attribute)), name
    for module in pkgutil.walk_packages(compss_train.__path__, "compss_train."):
        spec = importlib.util.find_spec(module.name)
        source = Path(spec.origin).read_text(encoding="utf-8")
        assert source.lstrip().startswith('"""'), module.name
