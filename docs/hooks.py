"""What the site adds to the pages of this folder: README and the like, notebooks, docstrings."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from compss_train import DistributedTrainer
from compss_train.training.named_fits import NamedFits

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
}
"""Files of the project's folder, and the pages that they become."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for name, page in PAGES.items():
        files.append(
            File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8"))
        )
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        content = notebook_page(Path(str(notebook.abs_src_path)))
        files.append(
            File.generated(config, notebook.src_uri.replace(".ipynb", ".md"), content=content)
        )
    return files


PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="(?P<dark>\S+)">\s*'
    r'<img alt="(?P<alt>[^"]+)" src="(?P<light>\S+)">\s*</picture>'
)
"""A picture with a variant for dark screens, as Git hosts show it."""


SETTINGS: dict[str, dict[str, Any]] = {
    "cheat-sheet.md": {"hide": ["toc"]},  # its table has five columns
    "how-do-i.md": {"search": {"boost": 4}},
}
"""What Material reads from the head of pages; there, Git hosts would show it."""
BELOW_GUIDES = {"boost": 0.5}
"""For pages of the reference, which have the words of users in many docstrings."""


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Change links in pages, which fit the folders of the repository, to those of the site.

    Of two variants of a picture the site shows the one of its own palette, whatever the system's.
    """
    if page.file.src_uri == "reference/trainer.md":
        markdown = markdown.replace("members: true", f"members: {trainer_members()}")
    if page.file.src_uri.startswith("reference/"):
        page.meta["search"] = BELOW_GUIDES
    page.meta.update(SETTINGS.get(page.file.src_uri, {}))
    variants = r"![\g<alt>](\g<light>#only-light)![\g<alt>](\g<dark>#only-dark)"
    return (
        PICTURE.sub(variants, markdown)
        .replace("](docs/", "](")
        .replace("](../README.md", "](index.md")
        .replace(".ipynb)", ".md)")
    )


FIRST = ("build", "fit", "evaluate", "predict", "model", "export", "save", "restore", "history")
"""What programs call of the trainer, which its reference begins with."""
LAST = ("checkpoint_bytes", "snapshot", "state_id", "trained_samples", "remarks", "clock")
"""What callbacks of the package use."""


def trainer_members() -> list[str]:
    """Return the public names of the trainer: what programs call first, the named fits last."""
    named_fits = [name for name in vars(NamedFits) if name.startswith("fit_")]
    apart = {*FIRST, *LAST, *named_fits}
    public = [name for name in dir(DistributedTrainer) if not name.startswith("_")]
    return [*FIRST, *(name for name in public if name not in apart), *LAST, *named_fits]


def notebook_page(path: Path) -> str:
    """Return a notebook with its outputs as Markdown."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join(part for cell in cells for part in _parts(cell))


def _parts(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        data = output.get("data", {"text/plain": output.get("text", [])})
        if "image/png" in data:
            yield f"![what the cell draws](data:image/png;base64,{data['image/png'].strip()})"
        else:
            yield f"```text\n{''.join(data['text/plain']).rstrip()}\n```"


class ProseFirst(griffe.Extension):
    """Puts the paragraphs after a list of parameters before it.

    To numpydoc a list goes on to the next heading.
    """

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = prose_first(obj.docstring.value)


def prose_first(docstring: str, heading: str = "Parameters\n----------\n") -> str:
    """Return a docstring that ends with its list of parameters.

    An item of the list is a name above indented lines.
    """
    before, marker, after = docstring.partition(heading)
    items: list[str] = []
    for paragraph in after.split("\n\n"):
        if re.match(r" |.*\n ", paragraph):
            items.append(paragraph)
        else:
            before += f"{paragraph}\n\n"
    return before + marker + "\n\n".join(items)
