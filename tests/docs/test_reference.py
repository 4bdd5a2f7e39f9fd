"""The reference is made of docstrings: of all public modules, and of all names that the package offers."""

import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

import compss_train
from compss_train import callbacks

pdoc = pytest.importorskip("pdoc")


def name_of(page: Path) -> str:
    """The module that a page is about, without the package's name."""
    return ".".join(page.with_suffix("").parts).removeprefix("compss_train.")


def test_the_reference_is_made_and_has_every_public_name(tmp_path):
    from docs.reference import make

    make(tmp_path)
    pages = {name_of(page.relative_to(tmp_path)): page.read_text("utf-8") for page in tmp_path.rglob("*.html")}
    for home, names in compss_train._HOMES.items():
        missing = [name for name in names if f'id="{name}"' not in pages[home]]
        assert missing == [], home
    for callback in callbacks.__all__:
        assert f'id="{callback}"' in pages["callbacks"]
    assert 'id="DistributedTrainer.fit"' in pages["trainer"]
    assert 'id="BuildableTrainer.build"' in pages["training.building"]


def test_every_public_name_has_a_docstring():
    offered = [getattr(compss_train, name) for name in compss_train.__all__]
    for value in [*offered, *(getattr(callbacks, name) for name in callbacks.__all__)]:
        assert inspect.getdoc(value), value


def test_every_module_says_what_it_is():
    for module in pkgutil.walk_packages(compss_train.__path__, "compss_train."):
        spec = importlib.util.find_spec(module.name)
        source = Path(spec.origin).read_text(encoding="utf-8")
        assert source.lstrip().startswith('"""'), module.name
