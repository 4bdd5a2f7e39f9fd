"""Modules that nodes lack: their sources travel."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import ray

from compss_train._utils import private_names
from compss_train.engines.ray import cluster, sources
from tests.helpers.processes import ROOT
from tests.helpers.programs import write_modules
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


@pytest.mark.usefixtures("shared_ray")
def test_a_node_without_the_modules_of_a_program_imports_what_was_sent(ray_cluster, tmp_path):
    write_modules(tmp_path)
    (tmp_path / "train.py").write_text(PROGRAM)
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


def test_what_the_cluster_keeps_is_imported(kept, tmp_path, monkeypatch):
    write_modules(tmp_path)
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__file__=f"{tmp_path}/train.py"))
    assert sources.KeptModules().find_spec("layers", None) is None
    sources.send_sources([json])
    modules = sources.KeptModules()
    assert all(modules.find_spec(name, None) for name in ("layers", "network", "json"))


def test_nothing_is_kept_of_a_program_without_modules(kept, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__file__=f"{tmp_path}/train.py"))
    sources.send_sources()
    assert kept == {}
