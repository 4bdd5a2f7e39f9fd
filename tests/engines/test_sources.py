"""Modules that processes lack: which sources are sent, and how they are imported."""

import importlib
import json
import os
import pickle
import sys
import zlib

import pytest
from torch import nn

from compss_train._utils.imports import FOLDER_MODULES
from compss_train.engines import sources
from tests.helpers.processes import ROOT
from tests.helpers.programs import write_modules


class SentModules(sources.SentModules):
    """Modules that this process was sent."""

    packed = b""

    def __init__(self, packed):
        self.packed = packed
        self.said = []

    def say(self, message):
        self.said.append(message)


def names_in(packed):
    return {*pickle.loads(zlib.decompress(packed))}


def test_sources_beside_the_main_file_are_sent_and_others_that_are_named(tmp_path):
    write_modules(tmp_path)
    main_file = tmp_path / "train.py"
    main_file.touch()
    modules = [json, str(ROOT / "tests/engines/test_sources.py")]
    assert names_in(sources.packed_sources(str(main_file), modules)) == {
        *("json", "json.decoder", "json.encoder", "json.scanner", "json.tool", "test_sources"),
        *("layers", "layers.scaled", "network", "train"),
    }


def test_a_run_file_sends_its_modules_only(tmp_path, monkeypatch):
    write_modules(tmp_path)
    monkeypatch.setenv(FOLDER_MODULES, json.dumps([str(tmp_path), ["network"]]))
    assert names_in(sources.packed_sources("/bin/compss-train")) == {"network"}


def test_too_many_sources_are_not_sent(tmp_path, monkeypatch):
    write_modules(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sources, "MOST_BYTES", 100)
    assert sources.packed_sources(None) == b""


@pytest.mark.skipif(os.getuid() == 0, reason="root can read all files")
def test_files_that_cannot_be_read_are_left_out(tmp_path):
    write_modules(tmp_path)
    (tmp_path / "network.py").chmod(0)
    assert "network" not in names_in(sources.packed_sources(str(tmp_path / "train.py")))


def test_sent_modules_stand_behind_all_others(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("decoded = False")
    (tmp_path / "only_sent.py").write_text("import json\nvalue = 5\nraise_here = lambda: 1 / 0\n")
    monkeypatch.chdir(tmp_path)
    finder = SentModules(sources.packed_sources(None))
    monkeypatch.chdir("/")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
    module = importlib.import_module("only_sent")
    monkeypatch.delitem(sys.modules, "only_sent")
    assert (module.value, module.json) == (5, json)
    assert module.__file__ == str(tmp_path / "only_sent.py")
    (line,) = finder.said
    assert line.startswith("module 'only_sent' is not on ")
    assert line.endswith(f"imports it as {tmp_path}/only_sent.py was when the program began")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("not_even_sent")


def test_a_package_is_whole_whatever_is_in_its_folder_by_now(tmp_path, monkeypatch):
    write_modules(tmp_path)
    finder = SentModules(sources.packed_sources(str(tmp_path / "train.py")))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
    (tmp_path / "layers/scaled.py").write_text("Scaled = None\n")
    (tmp_path / "layers/newer.py").touch()
    package = importlib.import_module("layers")
    assert issubclass(package.Scaled, nn.Linear)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("layers.newer")
    for name in ("layers", "layers.scaled"):
        del sys.modules[name]


def test_a_module_that_is_not_there_is_an_error(tmp_path):
    (tmp_path / "network.py").write_text("")
    assert sources.packed_sources(None, [str(tmp_path / "network.py")])
    with pytest.raises(ValueError, match=r"modules: there is no '.*netwrok.py'"):
        sources.packed_sources(None, [str(tmp_path / "netwrok.py")])
