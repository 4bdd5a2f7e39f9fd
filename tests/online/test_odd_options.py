"""Every option of an online study gets odd values: it takes them, or raises an error of its name.

That is before any work: no fit, no task and no connection begins here.
"""

import math
import re
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import (
    BreedInputs,
    BufferSpec,
    DistributedTrainer,
    Merge,
    OGASInputs,
    SampleSender,
    Simulations,
    Solver,
    SpacedInputs,
)
from compss_train.online.fitting import OnlineFit
from compss_train.parameter_server import LocalParameterServer, connect
from tests.online.simulations import free_port

HALF_A_CHARACTER = "\ud800"
PLAIN = [None, True, False, 0, -1, 3, 2**31, 2**63, 10**30, 10**400, 0.5, 1j]
PLAIN += [math.nan, math.inf, -math.inf, Decimal("nan"), Fraction(1, 2)]
TEXTS = ["", "abc", HALF_A_CHARACTER, "a\0b", b"x", Path("x")]
CONTAINERS = [[], [None], [1, 2], ["a", 1], (), {}, {"a": 1}, {1: [2]}, {"a": None}, set()]
CONTAINERS += [range(3), np.array([]), np.array([1, 2]), np.array([[1.0, 2.0]])]
CONTAINERS += [torch.tensor([1, 2])]
SCALARS = [np.array(3), np.array("x"), np.int64(3), np.float32("nan"), np.bool_(True)]
SCALARS += [torch.tensor(3), torch.tensor(math.nan)]
OBJECTS = [object(), lambda: None, int, timedelta(seconds=1), timedelta(-1)]
ODD = [*PLAIN, *TEXTS, *CONTAINERS, *SCALARS, *OBJECTS]


def simulate(_):
    yield np.zeros(3, np.float32), np.zeros(1, np.float32)


def network_inputs(_):
    return np.zeros((1, 3), np.float32)


def fit_online(**options):
    """Fit up to the point where work would begin."""
    trainer = DistributedTrainer(1, engine="local", seed=0, threads=1)
    trainer.build(nn.Linear(3, 1), {"optimizer": "sgd", "lr": 0.01}, "mse")
    defaults = {
        "simulations": Simulations(simulate, [1, 2]),
        "buffer": BufferSpec("FIFO", 10),
        "batch_size": 2,
        "progress": False,
    }
    with trainer, pytest.MonkeyPatch.context() as patch:
        patch.setattr(OnlineFit, "_train", lambda fit: None)
        trainer.fit_online(**(defaults | options))


def build(**options):
    """Build a network with options of its optimizer."""
    trainer = DistributedTrainer(1, engine="serial", seed=0, threads=1)
    trainer.build(nn.Linear(3, 1), {"optimizer": "sgd", "lr": 0.1} | options, "mse")


def init(parameter_id):
    with LocalParameterServer() as server:
        server.init(parameter_id, [np.zeros(1)])


def nobody():
    """Return an address at which nobody listens."""
    return f"tcp://127.0.0.1:{free_port()}"


def send(**options):
    SampleSender(**({"address": nobody(), "token": "ours", "timeout": 0.0} | options))


def connected(**options):
    connect(**({"address": nobody(), "token": "ours", "timeout": 0.05} | options))


CASES = {
    "Simulations": (
        partial(Simulations, simulate=simulate, inputs=[1]),
        "simulate inputs count retries timeout steps pairing lockstep senders address token "
        "senders_timeout",
    ),
    "Simulations of senders": (
        partial(Simulations, senders=1, address="tcp://127.0.0.1:9", token="ours"),
        "inputs senders address token",
    ),
    "Solver": (
        partial(Solver, command=["true"], sample=simulate),
        "command sample cpus environment",
    ),
    "BreedInputs": (
        partial(BreedInputs, bounds=[(0, 1)], number=5),
        "bounds number period window sigma start end breakpoint seed",
    ),
    "OGASInputs": (
        partial(OGASInputs, bounds=[(0, 1)], number=5),
        "bounds number period start end breakpoint guidance steps seed",
    ),
    "SpacedInputs": (
        partial(SpacedInputs, bounds=[(0, 1)], number=5, network_inputs=network_inputs),
        "bounds number network_inputs power candidates seed",
    ),
    "FIFO": (
        partial(BufferSpec, kind="FIFO", capacity=10),
        "kind capacity threshold sweep_size nb_time_steps passes max_repeats",
    ),
    "Reservoir": (
        partial(BufferSpec, kind="Reservoir", capacity=10),
        "capacity threshold passes max_repeats",
    ),
    "SimPairedReservoir": (
        partial(
            BufferSpec,
            kind="SimPairedReservoir",
            capacity=10,
            threshold=2,
            sweep_size=4,
            nb_time_steps=4,
        ),
        "capacity threshold sweep_size nb_time_steps max_repeats",
    ),
    "Merge": (
        Merge,
        "every unit optimizer_state outer_optimizer rule trim averaging averaging_unit dtype "
        "quorum grace",
    ),
    "build": (build, "lr momentum weight_decay dampening"),
    "init": (init, "parameter_id"),
}
FITS = {
    "fit_online": (
        fit_online,
        "simulations buffer batch_size merge max_batches validation_data callbacks progress "
        "max_time record_every checkpoint_every resume",
    ),
    "SampleSender": (send, "address token name"),
    "connect": (connected, "address token name generation"),
}
NOBODY_LISTENS = (ConnectionRefusedError, TimeoutError)
"""What an attempt to connect ends with, when its options are fine."""


def wrong_errors(function, option, values):
    """Return what is neither taken nor an error that names the option, by value."""
    wrong = {}
    for value in values:
        try:
            function(**{option: value})
        except NOBODY_LISTENS:
            pass
        except FileNotFoundError as error:  # a folder of checkpoints that is not there
            if option != "resume":
                wrong[repr(value)] = repr(error)
        except Exception as error:
            text = " ".join([str(error), *getattr(error, "__notes__", [])])
            is_clear = isinstance(error, ValueError | TypeError)
            if not is_clear or not re.search(rf"\b{option}\b", text):
                wrong[repr(value)] = repr(error)
    return wrong


def each_option(cases):
    return [
        pytest.param(function, option, id=f"{name} {option}")
        for name, (function, options) in cases.items()
        for option in options.split()
    ]


@pytest.mark.parametrize(("function", "option"), each_option(CASES))
def test_an_option_takes_a_value_or_names_itself(function, option):
    assert wrong_errors(function, option, ODD) == {}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("function", "option"), each_option(FITS))
def test_an_option_of_a_fit_takes_a_value_or_names_itself(function, option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert wrong_errors(function, option, ODD) == {}
