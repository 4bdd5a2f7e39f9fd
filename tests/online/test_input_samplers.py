"""Samplers of inputs by themselves: where they draw, and that a state is all that decides the
rest.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train import BreedInputs, SpacedInputs
from compss_train.model.value_encoding import decode_value, encode_value
from compss_train.online.simulation_table import SimulationTable

BOUNDS = [(-1.0, 3.0), (100.0, 500.0)]


def rows(point):
    """Return two inputs of a network that a point has."""
    values = [*point.values()] if isinstance(point, dict) else point
    return np.array([[*values, step] for step in (0, 1)], np.float32)


def one_row(point):
    return point[None]


def table_of(network):
    """Return a table whose only copy of a network is a function."""
    return SimulationTable(lambda x, copies: np.array([network(x)]))


def draw(sampler, table, loss):
    """Draw all inputs; each simulation gets its loss at once."""
    inputs = []
    while (value := sampler.next(table)) is not None:
        table.begin(value)
        table.set(len(table) - 1, loss=loss(value), excess=loss(value), trained=1)
        inputs.append(value)
    return inputs


def spaced(number, seed):
    return SpacedInputs(BOUNDS, number, rows, candidates=50, seed=seed)


def mixed(number, seed):
    return SpacedInputs(BOUNDS, number, rows, candidates=50, uniform=0.4, seed=seed)


def breed(number, seed):
    return BreedInputs(BOUNDS, number, period=3, window=8, sigma=0.5, start=0.5, seed=seed)


@pytest.mark.parametrize("make", [spaced, mixed, breed])
@given(
    seed=st.integers(0, 2**32),
    number=st.integers(1, 40),
    loss=st.floats(0, 1e9),
    after=st.integers(0, 40),
)
def test_inputs_are_inside_their_bounds_and_go_on_from_a_state(make, seed, number, loss, after):
    """What comes next depends on the state and the table alone."""
    low, high = np.transpose(BOUNDS)

    def made(seed):
        return make(number, seed), table_of(np.tanh)

    whole = draw(*made(seed), lambda value: loss)
    assert len(whole) == number
    assert all(np.all((low <= each) & (each <= high)) for each in whole)
    first, table = made(seed)
    begun = []
    for _ in range(min(after, number)):
        begun.append(first.next(table))
        table.begin(begun[-1])
        table.set(len(table) - 1, loss=loss, excess=loss, trained=1)
    second, _ = made(seed + 1)
    second.load_state_dict(decode_value(encode_value(first.state_dict())))
    np.testing.assert_array_equal([*begun, *draw(second, table, lambda value: loss)], whole)


@given(share=st.floats(0, 1), number=st.integers(11, 60))
def test_a_share_of_inputs_is_uniform_and_evenly_spread(share, number):
    """Of any inputs in a row the uniform ones are the share, to within one; the first are Sobol."""
    sampler = SpacedInputs([(0, 1)], number, one_row, candidates=3, uniform=share)
    table = table_of(np.tanh)
    origins = []
    while (value := sampler.next(table)) is not None:
        table.begin(value)
        table.set(len(table) - 1, loss=1.0, trained=1)
        origins.append(sampler.origin)
    assert set(origins[:10]) == {"first"}
    is_uniform = np.array(origins[10:]) == "uniform"
    counts = np.append(0, np.cumsum(is_uniform))
    numbers = np.arange(len(counts))
    apart = counts[:, None] - counts - share * (numbers[:, None] - numbers)
    assert np.abs(apart).max() < 1 + 1e-9
    assert sampler.needs_losses == (share < 1)


def test_uniform_inputs_count_as_earlier_ones():
    """Half of them uniform: the others fill the gaps, so that all are farther apart than chance."""
    sampler = SpacedInputs([(0, 1)] * 2, 100, one_row, uniform=0.5, power=0, seed=1)
    points = np.array(draw(sampler, table_of(np.array), lambda value: 1.0))
    uniform = np.random.default_rng(0).uniform(size=points.shape)
    assert gaps_of(points).mean() > 1.1 * gaps_of(uniform).mean()


def test_children_are_near_fit_parents_and_their_share_rises():
    """Only one input of the first ten has fitness: all children of the next generation are its."""
    sampler = BreedInputs([(0, 1)] * 2, 60, sigma=1e-4, start=0.2, end=1.0, breakpoint=4, seed=2)
    table = table_of(np.tanh)
    origins = []
    for number in range(60):
        table.begin(sampler.next(table))
        table.set(number, excess=float(number == 3))
        origins.append(sampler.origin)
    assert origins[:10] == ["uniform"] * 10
    assert origins[50:] == ["bred"] * 10
    points = np.array(table.inputs)
    is_child = np.array(origins) == "bred"
    assert np.abs(points[is_child] - points[3]).max() < 0.05
    shares = is_child[10:].reshape(5, 10).mean(1)
    assert shares[0] < shares[2] < 1


def test_parents_are_the_newest_and_none_that_failed():
    """Without a parent that has fitness, inputs are uniform."""
    sampler = BreedInputs([(0, 1)], 30, window=5, start=1.0, end=1.0, seed=0)
    table = table_of(np.tanh)
    for number in range(20):
        table.begin(sampler.next(table))
        table.set(number, excess=float(number < 5), failed=number == 15)
        assert sampler.origin == "uniform"
    table.set(15, excess=1.0)
    table.begin(sampler.next(table))
    assert sampler.origin == "uniform"
    table.set(15, failed=False)
    for _ in range(9):
        table.begin(sampler.next(table))
        assert sampler.origin == "uniform"  # until the next generation


@pytest.mark.parametrize("earlier", [3, 15, 20])
def test_a_sampler_that_has_drawn_for_another_study_is_an_error(earlier, raises):
    sampler = SpacedInputs(BOUNDS, 20, rows)
    table = table_of(np.tanh)
    for _ in range(earlier):
        table.begin(sampler.next(table))
    with raises(ValueError, f"SpacedInputs has drawn {earlier} inputs, and 0 simulations"):
        sampler.next(table_of(np.tanh))


def test_named_parameters_make_dicts_with_the_same_values():
    named = SpacedInputs(dict(zip("ab", BOUNDS, strict=True)), 30, rows, seed=3)
    dicts = draw(named, table_of(np.sin), lambda value: value["a"] + 2)
    arrays = draw(
        SpacedInputs(BOUNDS, 30, rows, seed=3), table_of(np.sin), lambda value: value[0] + 2
    )
    assert [[each["a"], each["b"]] for each in dicts] == [each.tolist() for each in arrays]


def gaps_of(points):
    """Return the distance of each point to its nearest neighbour."""
    apart = np.sqrt(((points[:, None] - points) ** 2).sum(2))
    return apart[~np.eye(len(points), dtype=bool)].reshape(len(points), -1).min(1)


def test_inputs_are_spaced_in_their_outputs():
    """Outputs that are the parameters themselves: no two inputs are close, and all parts of the box
    have some.
    """
    points = np.array(
        draw(
            SpacedInputs([(0, 1)] * 3, 200, one_row, power=0), table_of(np.array), lambda value: 1.0
        )
    )
    uniform = np.random.default_rng(0).uniform(size=points.shape)
    assert gaps_of(points).min() > 4 * gaps_of(uniform).min()
    assert gaps_of(points).mean() > 1.2 * gaps_of(uniform).mean()
    corners = (points > 0.5) @ [1, 2, 4]
    assert np.bincount(corners, minlength=8).min() > 12


def test_inputs_are_closer_together_where_outputs_change_more():
    """One output, nine times as fast in one half: gaps are as the slopes to the power -2/3.

    Slopes are those of the place of an input: of its output, in root mean squares, and of the input
    itself.
    """

    def bent(x):
        return np.where(x < 0.5, x, 9 * x - 4)

    points = np.array(
        draw(SpacedInputs([(0, 1)], 100, one_row, power=0), table_of(bent), lambda value: 1.0)
    )
    slow, fast = np.hypot(
        np.array([1, 9]) / bent(np.linspace(0, 1, 1001)).std(), 0.5 * 12**0.5
    ) ** (2 / 3)
    assert abs((points > 0.5).mean() - fast / (slow + fast)) < 0.05


def test_inputs_are_closer_together_where_the_loss_is_high():
    """A loss that grows by e⁶ from one end to the other: a density of its power, in two
    dimensions.
    """

    def share(power):
        sampler = SpacedInputs([(0, 1)] * 2, 200, one_row, power=power)
        points = np.array(draw(sampler, table_of(np.array), lambda value: np.exp(6 * value[0])))
        assert sampler.origin == ("far and hard" if power else "far")
        assert sampler.needs_losses == (power > 0)
        return (points[:, 0] > 0.5).mean()

    assert abs(share(0) - 0.5) < 0.05
    expected = (np.exp(1.8) - np.exp(0.9)) / (np.exp(1.8) - 1)  # of the half with the higher losses
    assert abs(share(0.3) - expected) < 0.05


@pytest.mark.parametrize(
    ("options", "error", "name"),
    [
        ({"power": -1}, ValueError, "power=-1"),
        ({"candidates": 0}, ValueError, "candidates=0"),
        ({"uniform": 1.5}, ValueError, "uniform=1.5"),
        ({"number": 0}, ValueError, "number=0"),
        ({"seed": -1}, ValueError, "seed=-1"),
        ({"network_inputs": [1]}, TypeError, "network_inputs=[1]: give a function"),
    ],
)
def test_invalid_options_are_errors(options, error, name, raises):
    with raises(error, name):
        SpacedInputs(**({"bounds": BOUNDS, "number": 3, "network_inputs": rows} | options))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"period": 0}, "period=0"),
        ({"window": 0}, "window=0"),
        ({"sigma": -1}, "sigma=-1"),
        ({"start": 1.5}, "start=1.5"),
        ({"end": -0.1}, "end=-0.1"),
        ({"breakpoint": 0}, "breakpoint=0"),
    ],
)
def test_invalid_options_of_breed_are_errors(options, name, raises):
    with raises(ValueError, name):
        BreedInputs(BOUNDS, 3, **options)


@pytest.mark.parametrize(
    "bounds", [[], [(0, 0)], [(1, 0)], [(0, np.inf)], [(0, 1, 2)], [0, 1], {"a": "ab"}, [(0, None)]]
)
def test_bounds_must_be_pairs_of_numbers(bounds, raises):
    with raises(ValueError, "bounds="):
        SpacedInputs(bounds, 3, rows)


def test_a_table_of_no_fit_predicts_nothing_and_cannot_be_written(raises):
    table = SimulationTable()
    with raises(RuntimeError, "this table belongs to no fit"):
        table.predict(np.zeros(3))
    table.begin("x")
    assert (len(table), table.number.tolist(), table.complete.tolist()) == (1, [0], [False])
    assert np.isnan(table.loss).all()
    with pytest.raises(ValueError, match="read-only"):
        table.loss[0] = 1.0
