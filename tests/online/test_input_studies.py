"""The benchmark of inputs: its studies solve many inputs as they solve one, and it goes on."""

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
NAMES = ["heat", "ks", "feature", "front", "ten", "allen-cahn", "oscillator"]


@pytest.fixture
def studies(monkeypatch):
    """Let the benchmark import its module, and leave nothing of it behind."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    module = runpy.run_path(str(BENCHMARKS / "_input_studies.py"))
    yield module["STUDIES"] | module["HELD_OUT"]
    for name in ("_input_studies", "_input_tables"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", NAMES)
def test_fields_of_many_inputs_are_those_of_each(studies, name):
    assert list(studies) == NAMES
    study = studies[name]
    inputs = study.uniform(20, seed=1)
    fields = study.fields(inputs)
    assert fields.shape[:2] == (20, 10)
    assert np.isfinite(fields).all()
    assert 0.1 < fields.std() < 2
    single = [study.fields(value[None])[0] for value in inputs]
    np.testing.assert_allclose(np.stack(single), fields, rtol=1e-9, atol=1e-12)
    x = study.network_inputs(inputs, (3, 10))
    assert x.shape == (40, study.parameters + 1)
    assert np.abs(x).max() <= 1


def test_heat_follows_the_discrete_laplacian(studies):
    """The spectrum gives what small steps of the difference equation give."""
    value = np.array([0.4, 0.6, 0.2, 0.5, 0.3])
    x, y, width, diffusivity, wall = value
    places = np.arange(1, 13) / 13
    field = np.full((14, 14), wall)
    field[1:-1, 1:-1] = np.exp(-((places - x) ** 2 + (places[:, None] - y) ** 2) / (2 * width**2))
    steps = 2000
    for _ in range(steps):
        inner = field[1:-1, 1:-1]
        around = field[:-2, 1:-1] + field[2:, 1:-1] + field[1:-1, :-2] + field[1:-1, 2:]
        field[1:-1, 1:-1] = inner + diffusivity * 0.1 / steps * 13**2 * (around - 4 * inner)
    (fields,) = studies["heat"].fields(value[None])
    np.testing.assert_allclose(fields[-1].reshape(12, 12), field[1:-1, 1:-1], atol=1e-4)


def test_a_study_that_has_run_is_not_run_again(studies, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    options = ["--quick", "--study", "feature", "--sampler", "spaced", "breed"]
    monkeypatch.setattr(sys, "argv", ["active_inputs.py", *options])
    printed = []
    for _ in range(2):
        runpy.run_path(str(BENCHMARKS / "active_inputs.py"), run_name="__main__")
        printed.append(capsys.readouterr().out)
        lines = (tmp_path / "runs/active-inputs.jsonl").read_text().splitlines()
        assert len(lines) == 5  # uniform, 1.5 and 4 times as many, and two samplers
    torch.set_num_threads(threads)
    assert printed[0] == printed[1]
    for label in ("uniform x 1.5 (scale)", "uniform x 4 (scale)", "spaced", "breed"):
        assert f"  {label} (1 seeds): 99th percentile" in printed[0]


def test_what_has_run_is_shown_and_drawn(studies, monkeypatch, capsys, tmp_path):
    """Ratios are of the seeds that have both."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    study = {"study": "front", "simulations": 40, "batches": 6000}
    numbers = ("99th percentile", "mean", "median", "seconds")
    with (tmp_path / "runs/active-inputs.jsonl").open("w") as file:
        for method, seed, value in [
            ("uniform", 0, 1.0),
            ("uniform", 1, 2.0),
            ("spaced", 1, 1.0),
            ("spaced", 2, 9.0),
            ("breed", 0, 2.0),
            ("breed", 1, 1.0),
        ]:
            run = {"method": method, "times": 1, "seed": seed, **dict.fromkeys(numbers, value)}
            file.write(json.dumps(study | run) + "\n")
    options = ["--known", "--study", "front", "--picture", "ratios.png"]
    monkeypatch.setattr(sys, "argv", ["active_inputs.py", *options])
    threads = torch.get_num_threads()
    runpy.run_path(str(BENCHMARKS / "active_inputs.py"), run_name="__main__")
    torch.set_num_threads(threads)
    printed = capsys.readouterr().out
    assert "uniform (2 seeds): 99th percentile 1.5," in printed
    assert "spaced (1 seeds): 99th percentile 0.50," in printed
    assert "breed (2 seeds): 99th percentile 1.00 ± 0.69," in printed
    assert "99th percentile: to uniform 1.00 (0.00 to " in printed  # of two seeds: very wide
    assert printed.count("99th percentile: to ") == 1  # one seed has no interval
    assert "ogas" not in printed
    assert (tmp_path / "ratios.png").stat().st_size > 1000
