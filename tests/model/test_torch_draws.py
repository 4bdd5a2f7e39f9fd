"""Redirected draws give what the process's generator gives after a seed, and leave it alone."""

import threading

import pytest
import torch
from torch import nn
from torch.distributions import Beta, Normal

from compss_train.model.random_state import random_state
from compss_train.model.torch_draws import CannotRedirectError, TorchDraws

DRAWS = {
    "rand": lambda x: torch.rand(7),
    "rand of a type": lambda x: torch.rand((2, 3), dtype=torch.float64, device="cpu"),
    "randn": lambda x: torch.randn(3, 3),
    "randint": lambda x: torch.randint(9, (8,)),
    "randint with a low": lambda x: torch.randint(-3, 9, (8,)),
    "randperm": lambda x: torch.randperm(20),
    "in place": lambda x: x.clone().uniform_(-1, 2),
    "normal": lambda x: torch.normal(x, 0.5),
    "bernoulli": lambda x: torch.bernoulli(torch.full((20,), 0.5)),
    "multinomial": lambda x: torch.multinomial(torch.ones(9), 4),
    "poisson": lambda x: torch.poisson(x.abs()),
    "dropout": lambda x: nn.functional.dropout(x, 0.4),
    "module": lambda x: nn.Sequential(nn.Dropout2d(0.3), nn.AlphaDropout(0.2))(x[None, :, None]),
    "distributions": lambda x: Beta(1.0, 2.0).sample() + Normal(0.0, x.abs() + 1).sample(),
    "several": lambda x: [torch.rand(2), torch.randperm(5), torch.rand(1)],
}
if hasattr(torch.ops.aten.rand_like, "generator"):  # in older versions of torch they cannot be redirected
    DRAWS |= {
        "rand_like": torch.rand_like,
        "randn_like": torch.randn_like,
        "randint_like": lambda x: torch.randint_like(x, 2, 9),
    }


def seeded(draw, x):
    with random_state(17, "cpu"):
        return draw(x)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_draws_are_those_after_the_seed_and_change_no_other_generator(draw):
    x = torch.linspace(-1, 2, 12).reshape(3, 4)
    before = torch.get_rng_state()
    with TorchDraws(lambda: 17) as draws:
        ours = draw(x)
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(ours, seeded(draw, x), rtol=0, atol=0)
    assert draws.can_be_redirected


def test_a_generator_of_the_caller_is_used():
    x = torch.ones(4)
    draws = [
        lambda own: torch.rand(3, generator=own),
        lambda own: torch.poisson(x, own),
        lambda own: x.clone().normal_(generator=own),
    ]
    for draw in draws:
        expected = draw(torch.Generator().manual_seed(3))
        with TorchDraws(lambda: 17):
            assert torch.equal(draw(torch.Generator().manual_seed(3)), expected)


def test_draws_of_other_threads_stay_as_they_are():
    found = []
    with random_state(5, "cpu"):
        expected = torch.rand(3)
    with random_state(5, "cpu"), TorchDraws(lambda: 17):
        torch.rand(9)
        thread = threading.Thread(target=lambda: found.append(torch.rand(3)))
        thread.start()
        thread.join()
    assert torch.equal(found[0], expected)


def test_a_draw_that_cannot_be_redirected_is_noted_or_an_error_before_it():
    x = torch.ones(3)
    with random_state(17, "cpu"):
        with TorchDraws(lambda: 17, redirect=False) as draws:
            torch.ops.aten.native_dropout(x, 0.5, True)
        assert not draws.can_be_redirected
        before = torch.get_rng_state()
        with pytest.raises(CannotRedirectError, match="native_dropout"), TorchDraws(lambda: 17):
            torch.ops.aten.native_dropout(x, 0.5, True)
        assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_draws_can_be_looked_at_where_they_are(draw):
    x = torch.linspace(-1, 2, 12).reshape(3, 4)
    with random_state(17, "cpu"), TorchDraws(lambda: 17, redirect=False) as draws:
        ours = draw(x)
    torch.testing.assert_close(ours, seeded(draw, x), rtol=0, atol=0)
    assert draws.can_be_redirected


def test_draws_after_another_seed_are_noted():
    with random_state(17, "cpu"), TorchDraws(lambda: 17, redirect=False) as draws, torch.random.fork_rng():
        torch.manual_seed(3)
        assert draws.can_be_redirected
        torch.rand(2)
    assert not draws.can_be_redirected
