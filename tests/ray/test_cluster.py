"""The cluster: started, joined, or the user's; who may join it, and what is said where there is none."""

import os
import subprocess
import sys

import pytest
import ray

from compss_train import DistributedTrainer, EngineClosedError
from compss_train.cli import main
from compss_train.engines import RayEngine, Resources
from compss_train.engines.ray import cluster
from tests.engines import tasks
from tests.helpers.models import mlp
from tests.helpers.processes import ROOT, python_blocks


@pytest.mark.slow  # another cluster
def test_a_program_has_a_cluster_of_its_own_that_no_stranger_joins():
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    program = [sys.executable, str(ROOT / "tests/ray/own_cluster.py")]
    environment = {**environment, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    assert "nodes ['127.0.0.2']" in done.stdout
    assert "a worker prints" in done.stdout + done.stderr
    assert "stranger: 1 True ''" in done.stdout
    assert "left running: False" in done.stdout


@pytest.mark.slow  # other processes of each node
def test_the_users_cluster_is_used_and_left_running(shared_ray):
    with RayEngine() as engine:
        ref = engine.publish(1)
        assert engine.fetch([engine.submit(tasks.add, ref, 2)]) == [3]
    assert ray.is_initialized()
    for call in (lambda: engine.fetch([ref]), lambda: engine.keep([ref]), lambda: engine.reserve([Resources()])):
        with pytest.raises(EngineClosedError, match="shut down"):
            call()
    assert shared_ray.fetch([shared_ray.publish(5)]) == [5]


@pytest.mark.parametrize(
    ("address", "error", "text"),
    [
        ("ray://head:10001", ValueError, "Ray Client .* is not supported; start the program on a node"),
        ("127.0.0.1:1", ConnectionError, "no Ray cluster answers there .*ray start --head"),
    ],
)
def test_addresses_without_a_cluster_are_errors(monkeypatch, address, error, text):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv(cluster.ADDRESS, address)
    with pytest.raises(error, match=text):
        RayEngine()


def test_more_than_the_cluster_has_is_an_error(shared_ray):
    with pytest.raises(ValueError, match="a task asks for 99 CPUs and the largest node has 2; use fewer threads"):
        shared_ray.submit(tasks.add, 1, resources=Resources(99))
    with pytest.raises(ValueError, match=r"9 tasks have to run at the same time .* or let more nodes join"):
        shared_ray.reserve([Resources()] * 9)
    trainer = DistributedTrainer(2, engine=shared_ray, threads=1)
    with pytest.raises(ValueError, match="num_gpu=1, but the ray engine has 0 GPUs"):
        trainer.build(mlp(), {"optimizer": "sgd", "lr": 0.1}, "cross_entropy", num_gpu=1)


@pytest.mark.usefixtures("shared_ray")
def test_the_doctor_finds_the_nodes(ray_cluster, monkeypatch, capsys):
    monkeypatch.setenv(cluster.ADDRESS, ray_cluster.address)
    assert main(["doctor", "--engine", "ray"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("2 CPUs, 0 GPUs") == 2
    assert printed.endswith("The ray engine can run here.\n")


@pytest.mark.slow  # Ray Tune takes 20 seconds to start
@pytest.mark.usefixtures("shared_ray")
@pytest.mark.filterwarnings("ignore")
def test_trials_run_as_documented(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # where Tune keeps its results
    (block,) = python_blocks("docs/ray.md")
    exec(compile(block, "docs/ray.md", "exec"), {"__name__": "trials"})
    assert "'lr': 0.0" in capsys.readouterr().out
