"""Parts of a merge change no bit: neither their number nor the chunks, in any kind of merge."""

from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from compss_train import Merge, SerialEngine
from compss_train.training.schedules import synchronous
from tests.helpers.models import assert_same_bits, awkward_net
from tests.helpers.small_fits import assert_alike, fit, trainer_of

ADAM = {"optimizer": "adam", "lr": 0.01}
NESTEROV = {"optimizer": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}


class PlacesEngine(SerialEngine):
    """Says that several places merge, and that tasks cost time, so that workers share them."""

    traits = replace(SerialEngine.traits, task_seconds=1.0)

    def __init__(self, places=1, slots=1):
        super().__init__()
        self.places = places
        self.number_of_slots = slots

    @property
    def merging_places(self):
        return self.places

    def slots(self, resources):
        return self.number_of_slots


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(synchronous, "LEAST_PART_BYTES", 1)


class WideNet(nn.Module):
    """Weights of two pieces, with scalars, nothing, and names that merges use themselves."""

    def __init__(self):
        super().__init__()
        self.net = awkward_net()
        self.wide = nn.Linear(3, 12_000, bias=False)
        self.output = nn.Linear(12_000, 3, bias=False)
        self.tied = self.output
        self.average = nn.ParameterDict({"w": nn.Parameter(torch.tensor(1.0))})
        self.empty = nn.Parameter(torch.zeros(0, 3))

    def forward(self, x):
        return self.tied(self.wide(self.net(x))) * self.average["w"] + self.empty.sum()


def matrices():
    """A network that Muon steps."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False))


class Clipping(torch.optim.SGD):
    """Looks at all weights."""

    def step(self, closure=None):
        torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 0.01)
        super().step()


def grouped(parameters):
    first, *others = parameters
    groups = [{"params": [first], "lr": 0.9}, {"params": others}]
    return torch.optim.SGD(groups if others else [first], lr=0.1)


OUTER = {
    "adafactor": {"optimizer": "adafactor", "lr": 0.01},
    "global norm": {"optimizer": Clipping, "lr": 0.5},
    "groups": grouped,
}
if hasattr(torch.optim, "Muon"):
    OUTER["muon"] = {"optimizer": "muon", "lr": 0.01}


@pytest.mark.parametrize("name", OUTER)
def test_an_outer_optimizer_steps_what_it_must_see_together(name):
    trainers = [trainer_of(PlacesEngine(places), net=matrices) for places in (1, 3)]
    for _ in range(2):
        for trainer in trainers:
            fit(trainer, num_epochs=2, merge=Merge(outer_optimizer=OUTER[name]))
        assert_alike(*trainers)


MERGES = [
    Merge(outer_optimizer=NESTEROV, optimizer_state="average", averaging="ema", dtype="int8"),
    Merge(outer_optimizer=ADAM, averaging=0.9, averaging_unit="steps", dtype="bf16"),
    Merge("commutative", optimizer_state="average"),
    Merge("commutative", quorum=0),
    Merge(rule="trimmed", averaging="ema", optimizer_state="average"),
    Merge(optimizer_state="reset"),
    Merge(),
]
"""What one fit after another merges by."""


@st.composite
def fits(draw):
    """The merge of each of some fits of one round, and its places and slots."""
    counts = st.integers(1, 5)
    return draw(
        st.lists(st.tuples(st.sampled_from(MERGES), counts, counts), min_size=2, max_size=3)
    )


@settings(max_examples=2)
@given(fits())
@example([(MERGES[0], 2, 2), (Merge(optimizer_state="reset"), 1, 1)])  # one task, which reduces
def test_parts_and_chunks_that_change_in_each_round_change_no_bit(rounds):
    changing_engine = PlacesEngine()
    still, changing = (
        trainer_of(engine, 4, net=WideNet) for engine in (PlacesEngine(slots=0), changing_engine)
    )
    for merge, places, slots in rounds:
        changing_engine.places = places
        changing_engine.number_of_slots = slots
        for trainer in (still, changing):
            fit(trainer, num_epochs=1, batch_size=30, blocks=4, merge=merge)
        assert_alike(still, changing)
        if merge.averaging is not None:
            assert_same_bits(*(dict(average(trainer)) for trainer in (still, changing)))


def average(trainer):
    return trainer.get_parameters(averaged=True)
