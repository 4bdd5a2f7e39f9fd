import sys
from types import SimpleNamespace

import pytest

from compss_train import DistributedTrainer
from compss_train.engines import CompssEngine, LocalEngine, engine_class
from compss_train.engines.compss import configuration, context
from compss_train.engines.compss.configuration import DeclaredNode
from compss_train.engines.compss.context import declared_nodes, thread_share, under_compss
from compss_train.exceptions import ScriptLoadingError


@pytest.fixture
def as_main_program(monkeypatch):
    """Let this process look like the main program of an application."""
    monkeypatch.delenv("COMPSS_TRAIN_ENGINE", raising=False)
    where = SimpleNamespace(CONTEXT=SimpleNamespace(in_master=lambda: True))
    monkeypatch.setitem(sys.modules, "pycompss.util.context", where)


def configured(monkeypatch, folder, *nodes):
    project, resources = configuration.write(folder, [configuration.Node(*node) for node in nodes])
    options = folder / "jvm_options"
    options.write_text(f"-Xms1024m\n-Dcompss.project.file={project}\n-Dcompss.resources.file={resources}\n")
    monkeypatch.setenv(context.JVM_OPTIONS, str(options))


def test_auto_is_compss_in_its_main_program_only(as_main_program, monkeypatch):
    assert engine_class("auto") is CompssEngine
    monkeypatch.setenv("COMPSS_TRAIN_ENGINE", "local")
    assert engine_class("auto") is LocalEngine
    monkeypatch.delenv("COMPSS_TRAIN_ENGINE")
    monkeypatch.delitem(sys.modules, "pycompss.util.context")
    assert not under_compss()
    assert engine_class("auto") is LocalEngine


def test_while_the_script_is_imported_there_is_no_compss_yet(as_main_program, monkeypatch):
    loading = [True]
    monkeypatch.setattr(
        sys.modules["pycompss.util.context"].CONTEXT, "is_loading", lambda: loading[0], raising=False
    )
    for name in ("auto", "compss"):
        with pytest.raises(ScriptLoadingError, match="imports a script before it runs it"):
            DistributedTrainer(2, engine=name)
    assert engine_class("local") is LocalEngine
    loading[0] = False
    assert engine_class("auto") is CompssEngine


def test_nodes_are_those_of_the_configuration(monkeypatch, tmp_path):
    configured(monkeypatch, tmp_path, ("first", 4), ("second", 2, 3))
    assert declared_nodes() == [DeclaredNode("first", 4, 0), DeclaredNode("second", 2, 3)]


def test_without_a_configuration_no_nodes_are_known(monkeypatch, tmp_path):
    monkeypatch.delenv(context.JVM_OPTIONS, raising=False)
    assert declared_nodes() == []
    monkeypatch.setenv(context.JVM_OPTIONS, str(tmp_path / "nothing"))
    assert declared_nodes() == []
    configured(monkeypatch, tmp_path, ("first", 4))
    (tmp_path / "resources.xml").write_text("<ResourcesList>")
    assert declared_nodes() == []


def test_workers_share_the_units_of_their_nodes(monkeypatch):
    monkeypatch.delenv("ComputingUnits", raising=False)
    nodes = [DeclaredNode("a", 48, 0), DeclaredNode("b", 48, 0)]
    assert [thread_share(workers, nodes) for workers in (1, 2, 8, 96, 200)] == [48, 48, 12, 1, 1]
    assert thread_share(2, [DeclaredNode("a", 48, 0), DeclaredNode("b", 4, 0)]) == 4
    assert thread_share(2, []) == 1
    monkeypatch.setenv("ComputingUnits", "6")
    assert thread_share(2, nodes) == 6


def test_more_gpus_than_declared_are_an_error_before_any_task(as_main_program, monkeypatch, tmp_path):
    configured(monkeypatch, tmp_path, ("first", 4, 2))
    CompssEngine.check_gpus(2, 1)
    with pytest.raises(ValueError, match="num_gpu=3, but the resources that COMPSs was started with have 2 GPUs"):
        CompssEngine.check_gpus(3, 1)


def test_without_pycompss_the_engine_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pycompss.api.api", None)
    with pytest.raises(ImportError, match=r"needs PyCOMPSs.*runcompss.*engine='local'"):
        CompssEngine()
