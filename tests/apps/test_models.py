"""The apps with models of their own kind learn what they should, in a few epochs."""

import re

import numpy as np
import pytest

from tests.apps.conftest import assert_wrong_option


@pytest.fixture
def printed_by(modules, one_thread, monkeypatch, capsys, tmp_path):
    """Run an app in this process, in an empty folder; return what it printed."""
    import importlib
    import sys

    monkeypatch.chdir(tmp_path)

    def run(app, epochs):
        monkeypatch.setattr(
            sys, "argv", [f"{app}.py", "--engine", "serial", "--epochs", str(epochs)]
        )
        importlib.import_module(app).main()
        return capsys.readouterr().out

    return run


def numbers(text):
    return [float(number) for number in re.findall(r"\d+\.\d+", text)]


def test_a_gan_makes_digits_that_differ(printed_by):
    discriminator, generator, spread = numbers(printed_by("gan", 3).splitlines()[-1])
    assert 0 < discriminator < 1.5
    assert generator > 0.5
    assert spread > 0.02


def test_two_towers_learn_the_tastes_of_users(printed_by):
    _, right, correlation = numbers(printed_by("two_towers", 5))
    assert right > 65
    assert correlation > 0.5


@pytest.mark.slow  # it trains for seconds
def test_a_language_model_learns_to_write_words(printed_by):
    first, last = numbers(text := printed_by("language_model", 2))
    assert last < first < 3.3
    assert text.splitlines()[1].startswith("the s")


@pytest.mark.slow  # it trains for seconds
def test_a_unet_marks_discs(printed_by):
    loss, overlap = numbers(printed_by("unet", 5))
    assert loss < 0.5
    assert overlap > 0.4


OPTIONS = ("--engine", "serial", "--epochs", 3, "--files", 5, "--shuffle-buffer", 50)


def test_it_trains_from_files_and_says_how_they_were_read(here, images, tmp_path):
    done = here(
        "npz_files", *OPTIONS, "--batch-size", 10, "--data", images, "--output", tmp_path / "run"
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert f"240 samples in 5 files in {tmp_path / 'run' / 'train'}" in done.stdout
    assert sorted(path.name for path in (tmp_path / "run" / "train").iterdir()) == [
        f"part-{number:06d}.npz" for number in range(5)
    ]
    opened = [int(number) for number in re.findall(r"(\d+) files opened", done.stdout)]
    assert len(opened) == 3
    assert all(5 <= number <= 6 for number in opened)  # one is cut between the two workers
    assert float(re.search(r"test accuracy ([\d.]+)%", done.stdout)[1]) > 80


def test_the_users_files_stay_apart_and_wrong_options_are_told(here, images, tmp_path):
    (tmp_path / "run" / "train").mkdir(parents=True)
    (own := tmp_path / "run" / "train" / "own.npz").touch()
    done = here("npz_files", *OPTIONS, "--data", images, "--output", tmp_path / "run")
    assert_wrong_option(done, "already contains own.npz; give a folder without .npz files")
    assert [*own.parent.iterdir()] == [own]
    for options, message in {
        "--files 0": "--files=0",
        "--pools 3": "pools=3",
        "--file-buffer 0": "file_buffer=0",
    }.items():
        done = here(
            "npz_files",
            *OPTIONS,
            "--data",
            "digits",
            *options.split(),
            "--output",
            tmp_path / "other",
        )
        assert_wrong_option(done, message)


WALLS = np.array([3.0, -1.0, 4.0, 1.5])


@pytest.fixture
def heat(modules):
    import heat

    return heat


def laplacian(field, walls):
    """Return the five-point stencil of a field surrounded by its walls."""
    padded = np.zeros(np.add(field.shape, 2))
    padded[:, 0], padded[:, -1], padded[0], padded[-1] = walls
    padded[1:-1, 1:-1] = field
    around = padded[1:-1, :-2] + padded[1:-1, 2:] + padded[:-2, 1:-1] + padded[2:, 1:-1]
    return (around - 4 * field) * (len(field) + 1) ** 2


@pytest.mark.parametrize("time_step", [1e-5, 0.01, 10.0])
@pytest.mark.parametrize("grid", [1, 2, 9, 64])
def test_a_step_solves_the_equations_of_implicit_euler(heat, grid, time_step):
    before = np.random.default_rng(grid).normal(size=(grid, grid))
    after = next(heat.HeatEquation(grid, time_step).fields(before, WALLS))
    np.testing.assert_allclose(
        after - time_step * laplacian(after, WALLS),
        before,
        rtol=1e-9,
        atol=1e-12 + 1e-12 * time_step * grid**2,
    )


def test_a_sample_has_temperatures_time_and_field(heat):
    parameters = np.array([100.0, 200.0, 300.0, 400.0, 500.0])
    x, y = heat.stack_samples(heat.simulate(parameters, grid=16, steps=40))
    assert (x.shape, x.dtype, y.shape, y.dtype) == ((40, 6), np.float32, (40, 16, 16), np.float32)
    np.testing.assert_allclose(x[:, :5], np.tile([0, 0.25, 0.5, 0.75, 1], (40, 1)))
    np.testing.assert_allclose(x[:, 5], np.arange(1, 41) / 40, rtol=1e-6)
    west = y[-1, 8, 0]
    east = y[-1, 8, -1]
    south = y[-1, 0, 8]
    north = y[-1, -1, 8]
    # One spacing inside.
    np.testing.assert_allclose([west, east, south, north], [0.25, 0.5, 0.75, 1], atol=0.08)
    np.testing.assert_allclose(heat.to_kelvin(heat.scale(parameters)), parameters)
