"""Solvers in Python: what arrives, what they import, and what becomes of their mistakes."""

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
from torch import nn

from compss_train import BufferSpec, DistributedTrainer, FileDataset, Merge, Simulations
from compss_train.cli.solvers import PYTHON
from compss_train.online.client import SolverClient
from tests.helpers.cases import each_value
from tests.online.solvers.compiled import SOURCES, mpirun, solver
from tests.online.test_solver import take_all

HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PATHS = os.pathsep.join([str(PYTHON), HERE, os.environ.get("PYTHONPATH", "")])


def python(name, *arguments, ranks=1, sample=None, **options):
    """Return a solver that runs a program of Python, on ranks of MPI if there are several."""
    command = [sys.executable]
    if ranks > 1:
        if importlib.util.find_spec("mpi4py") is None:
            pytest.skip("mpi4py is missing (the extra test)")
        command = mpirun(ranks, sys.executable)
    command += [str(SOURCES / name), *arguments]
    options["environment"] = {"PYTHONPATH": PATHS, **options.get("environment", {})}
    return solver(command, *([] if sample is None else [sample]), **options)


def fields_of(value, step, fields):
    return dict(fields), dict(fields.metadata)


@pytest.mark.parametrize(
    ("ranks", "environment"), each_value([1, 2, 3], [{}, {"COMPSS_TRAIN_SOLVER": "tcp"}])
)
def test_what_a_solver_sends_arrives(ranks, environment):
    run = python("faulty.py", "fine", ranks=ranks, sample=fields_of, environment=environment)
    sent = list(run(None))
    assert [step for step, *_ in sent] == list(range(6))
    for step, fields, metadata in sent:
        values = [10.0 * rank + step for rank in range(ranks)]
        np.testing.assert_array_equal(fields["u"], np.repeat(values, 4), strict=True)
        np.testing.assert_array_equal(fields["v"], np.repeat(values, 2), strict=True)
        assert metadata == {"u": f"step {step}"}


FAULTS = {
    "raises": "RuntimeError: no mesh",
    "exits": "ended with status 3",
    "finishes": "sends nothing more",
    "length": "2 values of 'u', which was declared with 4",
    "complex": "values of 'u' are complex128",
    "other": "sends 'v'",
    "unknown": "the field 'w' was not declared by init; 'u', 'v' declared",
    "declares": "declared the field 'w' after the first time step",
}


@pytest.mark.parametrize("what", [name for name in FAULTS if name not in ("finishes", "other")])
def test_a_solver_that_fails_is_an_error_with_its_last_lines(what):
    sent = []
    with pytest.raises(ChildProcessError) as raised:
        take_all(python("faulty.py", what)(None), sent)
    assert FAULTS[what] in str(raised.value)
    assert [step for step, *_ in sent] == [0, 1, 2]


@pytest.mark.parametrize("what", ["raises", "exits", "finishes", "length", "other"])
def test_a_rank_that_fails_ends_all_of_them(what):
    said = "rank 1 has ended without finalize" if what == "exits" else FAULTS[what]
    with pytest.raises(ChildProcessError) as raised:
        list(python("faulty.py", what, ranks=2)(None))
    assert said in str(raised.value)


def test_a_solver_by_itself_needs_the_variable_or_none():
    environment = {**os.environ, "PYTHONPATH": PATHS}
    environment.pop("COMPSS_TRAIN_SOLVER", None)
    command = [sys.executable, str(SOURCES / "faulty.py"), "fine"]

    def run(**variables):
        return subprocess.run(command, env={**environment, **variables}, stderr=subprocess.PIPE)

    assert b"COMPSS_TRAIN_SOLVER is not set" in run().stderr
    assert b"No such file" in run(COMPSS_TRAIN_SOLVER="/no/where").stderr
    assert b"is no address" in run(COMPSS_TRAIN_SOLVER="nowhere").stderr
    assert run(COMPSS_TRAIN_SOLVER="none").returncode == 0


def test_a_text_of_another_type_is_an_error(monkeypatch, raises):
    monkeypatch.setenv("COMPSS_TRAIN_SOLVER", "none")
    solver = SolverClient()
    solver.init("u", 2)
    for text in ({"time": 0.5}, None):
        with raises(TypeError, "'u'"):
            solver.send("u", [1.0, 2.0], text)


def test_masked_values_are_an_error(monkeypatch):
    monkeypatch.setenv("COMPSS_TRAIN_SOLVER", "none")
    solver = SolverClient()
    solver.init("u", 2)
    solver.send("u", np.ma.masked_array([1.0, 2.0], mask=False))
    with pytest.raises(TypeError, match="the field 'u' is a masked array"):
        solver.send("u", np.ma.masked_array([1.0, 2.0], mask=[False, True]))


STEPS = 30


def lorenz_sample(rho, step, fields):
    x = np.array([(rho - 10) / 5, 2 * step / STEPS - 1], np.float32)
    return x, (fields["position"] / 20).astype(np.float32)


def test_lorenz_with_melissas_calls_is_learned_from_two_ranks(local, tmp_path):
    run = python("lorenz.py", "{}", str(STEPS), ranks=2, sample=lorenz_sample, cpus=2)
    [name] = Simulations(run, [9.7], steps=STEPS).write(tmp_path, engine=local)
    with np.load(name) as arrays:
        assert arrays["y"].shape == (STEPS, 6)
        np.testing.assert_array_equal(arrays["y"][0], np.float32([1 / 20] * 3 + [2 / 20] * 3))
    trainer = DistributedTrainer(num_workers=1, engine=local, seed=0)
    trainer.build(
        nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 6)),
        {"optimizer": "adam", "lr": 0.01},
        "mse",
    )
    trainer.fit_online(
        Simulations(run, np.linspace(8, 12, 4), steps=STEPS),
        buffer=BufferSpec("Reservoir", capacity=400, threshold=100),
        batch_size=20,
        merge=Merge(every=20),
        max_batches=1000,
        validation_data=FileDataset(str(tmp_path / "*.npz")),
        progress=False,
    )
    assert trainer.history[-1]["val_loss"] < 0.002
