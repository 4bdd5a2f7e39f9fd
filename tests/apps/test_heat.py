"""The solver of the heat equation, compared with exact solutions, and its samples."""

import itertools

import numpy as np
import pytest

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
        after - time_step * laplacian(after, WALLS), before, rtol=1e-9, atol=1e-12 + 1e-12 * time_step * grid**2
    )


def test_the_field_converges_to_a_harmonic_function(heat):
    initial = np.random.default_rng(0).normal(size=(20, 20))
    last = next(itertools.islice(heat.HeatEquation(20, 1.0).fields(initial, WALLS), 30, None))
    np.testing.assert_allclose(laplacian(last, WALLS), 0, atol=1e-9)


@pytest.mark.parametrize("substeps", [1, 7])
def test_temperatures_stay_in_the_range_of_walls_and_initial_field(heat, substeps):
    for parameters in itertools.islice(heat.random_parameters(0), 20):
        fields = heat.to_kelvin(heat.stack_samples(heat.simulate(parameters, 17, 30, substeps))[1])
        assert fields.min() >= parameters.min() - 1e-3
        assert fields.max() <= parameters.max() + 1e-3


def test_substeps_are_steps_between_samples(heat):
    equation, initial = heat.HeatEquation(8, 0.01), np.ones((8, 8))
    every = itertools.islice(equation.fields(initial, WALLS), 2, None, 3)
    for third, field in zip(equation.fields(initial, WALLS, substeps=3), itertools.islice(every, 5), strict=False):
        np.testing.assert_allclose(third, field, rtol=1e-12, atol=1e-14)


def test_a_sample_has_temperatures_time_and_field(heat):
    parameters = np.array([100.0, 200.0, 300.0, 400.0, 500.0])
    x, y = heat.stack_samples(heat.simulate(parameters, grid=16, steps=40))
    assert (x.shape, x.dtype, y.shape, y.dtype) == ((40, 6), np.float32, (40, 16, 16), np.float32)
    np.testing.assert_allclose(x[:, :5], np.tile([0, 0.25, 0.5, 0.75, 1], (40, 1)))
    np.testing.assert_allclose(x[:, 5], np.arange(1, 41) / 40, rtol=1e-6)
    west, east, south, north = (y[-1, 8, 0], y[-1, 8, -1], y[-1, 0, 8], y[-1, -1, 8])
    np.testing.assert_allclose([west, east, south, north], [0.25, 0.5, 0.75, 1], atol=0.08)  # one spacing inside
    np.testing.assert_allclose(heat.to_kelvin(heat.scale(parameters)), parameters)


def test_seeds_and_numbers_decide_the_parameters(heat):
    seeds = ((0, 0), (0, 1), (1, 0))
    draws, again = (
        [list(itertools.islice(heat.random_parameters(*seed), 200)) for seed in seeds] for _ in range(2)
    )
    np.testing.assert_array_equal(draws, again)
    assert np.shape(draws) == (3, 200, heat.TEMPERATURES)
    assert len(np.unique(draws)) == np.size(draws)
    assert 100 <= np.min(draws) < 105
    assert 495 < np.max(draws) <= 500
