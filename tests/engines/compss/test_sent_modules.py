"""What COMPSs's tasks do with the modules of the program, without COMPSs."""

import importlib
import sys
from types import SimpleNamespace

import pytest

from compss_train.engines import local
from compss_train.engines.calls import Placeholder
from compss_train.engines.codec import SerializedValue
from compss_train.engines.compss import runtime, sent_modules, task_body
from compss_train.engines.sources import packed_sources
from compss_train.model.program_settings import ProgramSettings
from tests.helpers.programs import write_modules


@pytest.fixture(autouse=True)
def process(monkeypatch):
    """A process of COMPSs that has run no task."""
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    caches = (sent_modules.task_modules, sent_modules.say_once, local.kept_child)
    for cache in caches:
        cache.cache_clear()
    yield
    for name in ("network", "layers", "layers.scaled"):
        sys.modules.pop(name, None)
    for cache in caches:
        cache.cache_clear()


@pytest.fixture
def packed(tmp_path):
    """The sources of a program."""
    write_modules(tmp_path)
    return packed_sources(str(tmp_path / "train.py"))


def run(function, *args, sources, inputs=()):
    call = task_body.Call(function, args, False, ProgramSettings())
    return task_body.run_task(1, 1, SerializedValue.of(call), SerializedValue.of(sources), inputs)


def imported(name):
    return importlib.import_module(name).__name__


def test_a_task_notes_what_it_imports_and_results_carry_it_to_the_coordinator(
    packed, monkeypatch, capfd
):
    monkeypatch.setattr(runtime, "in_worker", lambda: True)
    monkeypatch.setattr(task_body, "_prepare_worker", lambda: None)
    result = run(imported, "network", sources=packed).load()
    assert isinstance(result, sent_modules.Noted)
    assert [note.split()[1] for note in result.notes] == ["'network'", "'layers'"]
    sent_modules.task_modules.cache_clear()  # another process
    written = SerializedValue.of(sent_modules.Noted(-3, result.notes))
    read = run(abs, Placeholder(0), sources=b"", inputs=[written]).load()
    assert read == sent_modules.Noted(3, result.notes)
    for _ in range(2):
        assert sent_modules.without_notes(read, sent_modules.say_once) == 3
    printed = capfd.readouterr().err
    assert printed.count("module 'network' is not on") == 1


def test_a_task_that_finds_its_modules_notes_nothing(monkeypatch):
    monkeypatch.setattr(runtime, "in_worker", lambda: True)
    monkeypatch.setattr(task_body, "_prepare_worker", lambda: None)
    assert run(imported, "json", sources=b"").load() == "json"


@pytest.mark.usefixtures("forked_processes")
def test_a_child_imports_what_its_parent_was_sent(packed):
    sent_modules.receive(packed)
    assert sent_modules.run_in_child_with_modules(imported, None, False, "network") == "network"
    assert len(sent_modules.task_modules().notes) == 2
    make_network = importlib.import_module("network").Net
    net = sent_modules.run_in_child_with_modules(make_network, None, False)
    assert type(net) is make_network


def test_the_main_file_is_the_script_that_compss_executes(monkeypatch):
    launched = SimpleNamespace(get_app_path=lambda: "/mine/train.py")
    main = SimpleNamespace(__file__="/opt/launch.py", LAUNCH_STATUS=launched)
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert runtime.main_file() == "/mine/train.py"
    del main.LAUNCH_STATUS
    assert runtime.main_file() == "/opt/launch.py"
    del main.__file__
    assert runtime.main_file() is None
