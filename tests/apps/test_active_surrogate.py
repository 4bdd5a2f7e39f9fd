"""The app with chosen inputs: its solvers by themselves, and a small study by each method."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from compss_train import LocalEngine


@pytest.fixture
def app(modules, one_thread):
    import active_surrogate

    return active_surrogate


@dataclass
class Decay:
    """One number that decays; quick ones are harder. A file counts the simulations that ended."""

    ended: Path
    bounds = ((0.0, 1.0),) * 5
    simulations = 20
    batches = 3
    points = 1

    def fields(self, parameters):
        for t in np.linspace(0, 1, 20):
            yield np.array([np.exp(-9 * parameters[0] * t)])
        with self.ended.open("ab") as file:
            file.write(b".")


def test_studies_train_their_batches_on_all_their_simulations(app, monkeypatch, tmp_path):
    """On one engine, whose processes take seconds to start."""
    with LocalEngine(2) as engine:
        for method in ("uniform", "spaced"):
            ended = tmp_path / method
            monkeypatch.setitem(app.PROBLEMS, "decay", Decay(ended))
            errors, seconds, history = app.study("decay", method, 0, engine)
            assert errors.shape == (1000,)
            assert np.isfinite(errors).all()
            assert seconds > 0
            assert sum(record["batches"] for record in history) >= 20 * 3 - 20
            assert ended.stat().st_size == 20 + 1000  # those held out
            app.held_out.cache_clear()


def test_the_hot_spot_cools_down_to_the_walls(app):
    low, high = np.transpose(app.HotSpot.bounds)
    fields = np.array(list(app.HotSpot().fields(np.array([0.5, 0.5, 0.1, 1.0, 0.0]))))
    assert fields.shape == (app.STEPS, app.HotSpot.points)
    assert (np.diff(fields.max(1)) < 0).all()
    long = app.HotSpot()
    long.duration = 10.0
    *_, last = long.fields((low + high) / 2)
    np.testing.assert_allclose(last, 0.5, atol=1e-6)


def test_the_equation_of_kuramoto_and_sivashinsky_keeps_the_mean_and_converges(app):
    """Fourth order: half the time step leaves a sixteenth of the error."""
    parameters = np.array([22.0, 1.0, 1.5, 1.0, 0.3])
    results = []
    for substeps in (5, 10, 20, 40):
        problem = app.KuramotoSivashinsky()
        problem.substeps = substeps
        results.append(np.array(list(problem.fields(parameters)))[-1])
    errors = [np.abs(each - results[-1]).max() for each in results[:-1]]
    assert abs(results[-1].mean()) < 1e-3
    assert errors[0] > 8 * errors[1] > 64 * errors[2]
    assert errors[1] < 1e-4
