"""Inputs that a diffusion model draws: that it learns what is difficult, and repeats."""

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import OGASInputs
from compss_train.model.value_encoding import decode_value, encode_value
from compss_train.online.ogas_inputs import _uniform_to_drawn
from compss_train.online.simulation_table import SimulationTable
from compss_train.online.small_networks import minimized, mlp, new_weights

BOUNDS = [(-1.0, 3.0), (100.0, 500.0)]
PEAK = np.array([0.7, 0.3])
SEVERAL = 16
"""Inputs of which some are bred, by networks that were trained once."""


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Small networks gain nothing from more; the coordinator of a fit gives a sampler one, too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def bump(point):
    """Return a loss that is high around one point of the unit box."""
    return 0.01 + np.exp(-((point - PEAK) ** 2).sum() / (2 * 0.15**2))


def begin_all(sampler, table, loss, most=None):
    """Draw all inputs, or so many, and return how each was chosen."""
    origins = []
    while len(origins) != most and (value := sampler.next(table)) is not None:
        table.begin(value)
        table.set(len(table) - 1, loss=loss(value), trained=1)
        origins.append(sampler.origin)
    return origins


def in_box(value):
    low, high = np.transpose(BOUNDS)
    return bump((value - low) / (high - low))


def made(seed):
    sampler = OGASInputs(BOUNDS, 24, period=6, start=0.8, end=0.9, steps=2, seed=seed)
    return sampler, SimulationTable()


@pytest.fixture(scope="module")
def whole(one_thread):
    """All that a sampler draws with the seed 4, which takes seconds."""
    sampler, table = made(4)
    origins = begin_all(sampler, table, in_box)
    assert origins.count("bred") > 4
    assert "bred" in origins[:SEVERAL]
    return table


@pytest.mark.parametrize(("after", "until"), [(0, SEVERAL), (12, SEVERAL), (15, 24)])
def test_inputs_go_on_from_a_state(whole, after, until):
    """What comes next depends on the state and the table alone."""
    low, high = np.transpose(BOUNDS)
    assert all(np.all((low <= value) & (value <= high)) for value in whole.inputs)
    first, table = made(4)
    for _ in range(after):
        table.begin(first.next(table))
        table.set(len(table) - 1, loss=in_box(table.inputs[-1]), trained=1)
    second, _ = made(5)
    second.load_state_dict(decode_value(encode_value(first.state_dict())))
    begin_all(second, table, in_box, until - after)
    np.testing.assert_array_equal(table.inputs, whole.inputs[:until])


def test_bred_inputs_are_where_losses_are_high():
    sampler = OGASInputs([(0, 1)] * 2, 60, period=20, start=0.5, end=0.5, steps=600, seed=1)
    table = SimulationTable()
    origins = np.array(begin_all(sampler, table, bump))
    assert (origins[:20] == "uniform").all()
    points = np.array(table.inputs)[40:]
    is_near = np.linalg.norm(points - PEAK, axis=1) < 0.25
    is_bred = origins[40:] == "bred"
    assert is_near[is_bred].mean() > 0.5
    assert is_near[~is_bred].mean() < 0.35


@pytest.mark.parametrize("loss", [0.0, -1.0, 3.0, float("nan")])
def test_losses_that_tell_nothing_give_uniform_inputs(loss):
    sampler = OGASInputs([(0, 1)], 30, start=1.0, end=1.0, seed=0)
    assert set(begin_all(sampler, SimulationTable(), lambda value: loss)) == {"uniform"}


def test_random_numbers_of_torch_stay_as_they_are():
    before = torch.random.get_rng_state()
    sampler, table = made(1)
    assert "bred" in begin_all(sampler, table, in_box, SEVERAL)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_what_was_drawn_often_weighs_less():
    generator = torch.Generator().manual_seed(0)
    often = -torch.rand(180, 1, generator=generator)
    seldom = torch.rand(20, 1, generator=generator)
    weights = _uniform_to_drawn(torch.cat([often, seldom]), generator)
    assert abs(weights.mean() - 1) < 1e-5
    assert weights[180:].mean() > 2 * weights[:180].mean()


def test_a_small_network_is_that_of_torch():
    generator = torch.Generator().manual_seed(0)
    weights = new_weights([3, 8, 8, 1], generator)
    layers = [nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 1)]
    net = nn.Sequential(*layers)
    with torch.no_grad():
        for parameter, weight in zip(net.parameters(), weights, strict=True):
            parameter.copy_(weight)
    x = torch.randn(20, 3, generator=generator)
    y = x.sum(1, keepdim=True)
    torch.testing.assert_close(mlp(weights, x), net(x))
    trained = minimized(weights, lambda: (mlp(weights, x) - y).square().mean(), steps=5, rate=0.01)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(5):
        optimizer.zero_grad()
        (net(x) - y).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(trained, [parameter.detach() for parameter in net.parameters()])


@pytest.mark.parametrize(
    ("options", "name"), [({"steps": 0}, "steps=0"), ({"guidance": -1}, "guidance=-1")]
)
def test_invalid_options_are_errors(options, name, raises):
    with raises(ValueError, name):
        OGASInputs(BOUNDS, 3, **options)


@pytest.fixture
def program_settings():
    """Restore what a program may set in torch."""
    dtype = torch.get_default_dtype()
    yield
    torch.set_default_dtype(dtype)
    torch.set_default_device(None)


@pytest.mark.usefixtures("program_settings")
@pytest.mark.parametrize("setting", ["float64", "bfloat16", "device", "no_grad", "inference_mode"])
def test_the_settings_of_the_program_change_nothing(whole, setting):
    """Programs set torch for their network, which is no matter of the sampler's small ones."""
    grad_mode = torch.enable_grad()
    if setting in ("float64", "bfloat16"):
        torch.set_default_dtype(getattr(torch, setting))
    elif setting == "device":
        torch.set_default_device("meta")
    else:
        grad_mode = getattr(torch, setting)()
    with grad_mode:
        sampler, table = made(4)
        begin_all(sampler, table, in_box, SEVERAL)
    np.testing.assert_array_equal(table.inputs, whole.inputs[:SEVERAL])
