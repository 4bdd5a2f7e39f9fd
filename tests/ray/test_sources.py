"""Modules that nodes lack: their sources travel."""

import importlib
import json
import os
import pickle
import subprocess
import sys
import zlib
from types import SimpleNamespace

import pytest
import ray

from compss_train._utils import private_names
from compss_train._utils.imports import FOLDER_MODULES
from compss_train.engines.ray import cluster, sources
from tests.helpers.processes import ROOT
from tests.helpers.waiting import LIMIT

PROGRAM = """
import pathlib, shutil, sys
import numpy as np
from compss_train import DistributedTrainer
from compss_train.engines import RayEngine
from network import Net, loss

def parameters(engine):
    trainer = DistributedTrainer(2, engine=engine, seed=0, threads=1)
    trainer.build(Net(), {"optimizer": "sgd", "lr": 0.1}, loss)
    x = np.arange(12, dtype="float32").reshape(6, 2)
    return trainer.fit(x, x[:, :1], num_epochs=2, batch_size=2, progress=False)

serial = parameters("serial")
with RayEngine() as engine:
    folder = pathlib.Path(__file__).parent
    (folder / "network.py").unlink()
    shutil.rmtree(folder / "layers")
    trained = parameters(engine)
    print([bool((serial[name] == trained[name]).all()) for name in serial])
"""


def write_program(folder):
    (folder / "layers").mkdir()
    (folder / "layers/__init__.py").write_text("from layers.scaled import Scaled\n")
    (folder / "layers/scaled.py").write_text(
        "from torch import nn\nclass Scaled(nn.Linear):\n    pass\n"
    )
    (folder / "network.py").write_text(
        "from torch import manual_seed, nn\nfrom layers import Scaled\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        manual_seed(0)\n"
        "        self.scaled = Scaled(2, 1)\n"
        "    def forward(self, x):\n"
        "        return self.scaled(x)\n"
        "def loss(outputs, y):\n"
        "    return ((outputs - y) ** 2).mean()\n"
    )
    (folder / "train.py").write_text(PROGRAM)


@pytest.mark.usefixtures("shared_ray")
def test_a_node_without_the_modules_of_a_program_imports_what_was_sent(ray_cluster, tmp_path):
    write_program(tmp_path)
    environment = {cluster.ADDRESS: ray_cluster.address, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "train.py")],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "[True, True]" in done.stdout
    printed = done.stdout + done.stderr
    assert "compss_train: module 'network' is not on " in printed
    assert f"imports it as {tmp_path}/network.py was" in printed


@pytest.fixture
def kept(monkeypatch):
    """What is kept in a cluster that is not there."""
    values = {}
    monkeypatch.setattr(private_names, "keep_in_cluster", values.__setitem__)
    monkeypatch.setattr(private_names, "kept_in_cluster", values.get)
    context = SimpleNamespace(get_job_id=lambda: "2")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    return values


def names_in(kept):
    return [*pickle.loads(zlib.decompress(*kept.values()))]


def test_sources_beside_the_main_file_are_sent_and_others_that_are_named(
    kept, tmp_path, monkeypatch
):
    write_program(tmp_path)
    main = SimpleNamespace(__file__=str(tmp_path / "train.py"))
    monkeypatch.setitem(sys.modules, "__main__", main)
    sources.send_sources([json, str(ROOT / "tests/ray/test_sources.py")])
    assert {*names_in(kept)} == {
        *("json", "json.decoder", "json.encoder", "json.scanner", "json.tool", "test_sources"),
        *("layers", "layers.scaled", "network", "train"),
    }


def test_a_run_file_sends_its_modules_only(kept, tmp_path, monkeypatch):
    write_program(tmp_path)
    monkeypatch.setenv(FOLDER_MODULES, json.dumps([str(tmp_path), ["network"]]))
    sources.send_sources()
    assert names_in(kept) == ["network"]


def test_too_many_sources_are_not_sent(kept, tmp_path, monkeypatch):
    write_program(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace())
    monkeypatch.setattr(sources, "MOST_BYTES", 100)
    sources.send_sources()
    assert kept == {}


def test_sent_modules_stand_behind_all_others(kept, tmp_path, monkeypatch, capsys):
    (tmp_path / "json.py").write_text("decoded = False")
    (tmp_path / "only_sent.py").write_text("import json\nvalue = 5\nraise_here = lambda: 1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace())
    sources.send_sources()
    monkeypatch.chdir("/")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, sources.SentModules()])
    module = importlib.import_module("only_sent")
    monkeypatch.delitem(sys.modules, "only_sent")
    assert (module.value, module.json) == (5, json)
    assert module.__file__ == str(tmp_path / "only_sent.py")
    assert "module 'only_sent' is not on" in capsys.readouterr().err
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("not_even_sent")
