"""Samplers of inputs by themselves: where they draw, and that a state is all that decides the rest."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train import BredInputs, SpacedInputs
from compss_train.model.saved_state import decode_value, encode_value
from compss_train.online.input_samplers import SimulationTable

BOUNDS = [(-1.0, 3.0), (100.0, 500.0)]
SAMPLERS = {"bred": BredInputs, "spaced": SpacedInputs}


def draw(sampler, table, excess):
    """Draw all inputs; each simulation gets its excess at once."""
    inputs = []
    while (value := sampler.next(table)) is not None:
        table.begin(value)
        table.set(len(table) - 1, excess=excess(value), loss=excess(value) + 1, trained=1)
        inputs.append(value)
    return inputs


@pytest.mark.parametrize("kind", SAMPLERS)
@given(seed=st.integers(0, 2**32), number=st.integers(1, 40), excess=st.floats(0, 1e9), after=st.integers(0, 40))
def test_inputs_are_inside_their_bounds_and_go_on_from_a_state(kind, seed, number, excess, after):
    low, high = np.transpose(BOUNDS)
    whole = draw(SAMPLERS[kind](BOUNDS, number, seed=seed), SimulationTable(), lambda value: excess)
    assert len(whole) == number
    assert all(np.all((low <= each) & (each <= high)) for each in whole)
    first, table = SAMPLERS[kind](BOUNDS, number, seed=seed), SimulationTable()
    begun = []
    for _ in range(min(after, number)):
        begun.append(first.next(table))
        table.begin(begun[-1])
        table.set(len(table) - 1, excess=excess, loss=excess + 1, trained=1)
    second = SAMPLERS[kind](BOUNDS, number, seed=seed + 1)
    second.load_state_dict(decode_value(encode_value(first.state_dict())))
    np.testing.assert_array_equal([*begun, *draw(second, table, lambda value: excess)], whole)


@pytest.mark.parametrize("kind", SAMPLERS)
def test_named_parameters_make_dicts_with_the_same_values(kind):
    named = SAMPLERS[kind](dict(zip("ab", BOUNDS, strict=True)), 30, seed=3)
    dicts = draw(named, SimulationTable(), lambda value: value["a"] > 2)
    arrays = draw(SAMPLERS[kind](BOUNDS, 30, seed=3), SimulationTable(), lambda value: value[0] > 2)
    assert [[each["a"], each["b"]] for each in dicts] == [each.tolist() for each in arrays]


def test_children_are_near_hard_inputs_and_their_share_rises():
    sampler, table, origins = BredInputs([(0, 1)] * 3, 4000, sigma=0.01, seed=1), SimulationTable(), []
    while (value := sampler.next(table)) is not None:
        origins.append(sampler.origin)
        if sampler.origin == "child":
            parents = np.array([each for each in table.inputs[-100:] if each[0] > 0.9])
            assert np.abs(parents - value).max(1).min() < 0.06
        table.begin(value)
        table.set(len(table) - 1, excess=float(value[0] > 0.9))
    children = np.array(origins) == "child"
    for part, expected in ((children[:1000], 0.225), (children[-1000:], 0.675)):
        assert abs(part.mean() - expected) < 0.06  # four standard deviations


def test_a_child_that_cannot_be_inside_is_its_parent():
    sampler, table = BredInputs([(0, 1)] * 400, 2, share=(1, 1), sigma=1e9), SimulationTable()
    table.begin(np.zeros(400))
    table.set(0, excess=1.0)
    np.testing.assert_array_equal(sampler.next(table), np.zeros(400))


def test_without_losses_all_inputs_are_uniform():
    sampler = BredInputs(BOUNDS, 300, share=(1, 1))
    draw(sampler, SimulationTable(), lambda value: 0.0)
    assert sampler.origin == "uniform"


def gaps_of(points):
    """Return the distance of each point to its nearest neighbour, where opposite walls touch."""
    apart = np.abs(points[:, None] - points)
    apart = np.sqrt((np.minimum(apart, 1 - apart) ** 2).sum(2))
    return apart[~np.eye(len(points), dtype=bool)].reshape(len(points), -1).min(1)


def test_without_losses_spaced_inputs_fill_the_box_evenly():
    points = np.array(draw(SpacedInputs([(0, 1)] * 3, 200, power=0), SimulationTable(), lambda value: 1.0))
    uniform = np.random.default_rng(0).uniform(size=points.shape)
    assert gaps_of(points).min() > 4 * gaps_of(uniform).min()
    assert gaps_of(points).mean() > 1.3 * gaps_of(uniform).mean()
    assert abs((points < 0.1).mean() - 0.1) < 0.03  # walls attract nothing


def test_spaced_inputs_are_closer_together_where_the_loss_is_high():
    """A loss that grows by e⁶ from one end to the other: a density of its power 0.15 · 2, in two dimensions."""
    sampler = SpacedInputs([(0, 1)] * 2, 400)
    points = np.array(draw(sampler, SimulationTable(), lambda value: np.exp(6 * value[0]) - 1))
    assert sampler.origin == "weighted"
    expected = (np.exp(1.8) - np.exp(0.9)) / (np.exp(1.8) - 1)  # of the half with the higher losses
    assert abs((points[:, 0] > 0.5).mean() - expected) < 0.05


@pytest.mark.parametrize(("options", "name"), [({"power": -1}, "power=-1"), ({"candidates": 0}, "candidates=0")])
def test_invalid_options_of_spaced_inputs_are_errors(options, name, raises):
    with raises(ValueError, name):
        SpacedInputs(BOUNDS, 3, **options)


@pytest.mark.parametrize(
    "bounds", [[], [(0, 0)], [(1, 0)], [(0, np.inf)], [(0, 1, 2)], [0, 1], {"a": "ab"}, [(0, None)]]
)
def test_bounds_must_be_pairs_of_numbers(bounds, raises):
    with raises(ValueError, "bounds="):
        BredInputs(bounds, 3)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"number": 0}, "number=0"),
        ({"share": (0.1, 1.1)}, "share=(0.1, 1.1)"),
        ({"share": (0.1,)}, "share=(0.1,)"),
        ({"sigma": 0.0}, "sigma=0.0"),
        ({"window": 0}, "window=0"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_invalid_options_are_errors(options, name, raises):
    with raises(ValueError, name):
        BredInputs(**({"bounds": BOUNDS, "number": 3} | options))


def test_a_table_of_no_fit_predicts_nothing_and_cannot_be_written(raises):
    table = SimulationTable()
    with raises(RuntimeError, "this table belongs to no fit"):
        table.predict(np.zeros(3))
    table.begin("x")
    assert (len(table), table.number.tolist(), table.complete.tolist()) == (1, [0], [False])
    assert np.isnan(table.loss).all()
    with pytest.raises(ValueError, match="read-only"):
        table.loss[0] = 1.0
