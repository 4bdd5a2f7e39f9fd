"""Mean and spread of the inputs whose simulations have samples in the workers' buffers."""

from collections import namedtuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compss_train import BufferSpec
from compss_train.buffers.samples import NO_KEYS
from compss_train.callbacks import Callback
from compss_train.online.input_statistics import (
    MOST_NUMBERS,
    InputStatistics,
    simulation_counts,
)
from compss_train.reports.records import flatten
from tests.helpers.models import SGD, mlp
from tests.online.fits import build_trainer, fit_online
from tests.online.simulations import wait_for_file

NUMBERS = st.floats(-1000, 1000, width=32)
Pair = namedtuple("Pair", ["left", "right"])


def statistics_of(*inputs):
    statistics = InputStatistics()
    for value in inputs:
        statistics.add(value)
    return statistics


@given(
    st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=70),
    st.lists(st.lists(st.integers(0, 69), max_size=30), min_size=1, max_size=3),
)
def test_statistics_are_those_of_all_samples_in_all_buffers(inputs, buffers):
    held = [[number % len(inputs) for number in buffer] for buffer in buffers]
    counts = [
        simulation_counts(np.array([[number, 0] for number in buffer], np.int64).reshape(-1, 2))
        for buffer in held
    ]
    together = [inputs[number] for buffer in held for number in buffer]
    record = statistics_of(*inputs).of_buffers(counts)
    if not together:
        assert record is None
        return
    np.testing.assert_allclose(record["mean"], np.mean(together, 0), rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(record["std"], np.std(together, 0), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("low", "high", "mean"),
    [
        (1, 3.0, 2.0),
        (np.float32(1), np.float32(3), 2.0),
        ([1, [2.0]], [3, [6.0]], [2.0, [4.0]]),
        (range(2), range(1, 3), [0.5, 1.5]),
        (np.eye(2), 3 * np.eye(2), [[2.0, 0.0], [0.0, 2.0]]),
        (torch.tensor([1, 2]), torch.tensor([3, 2]), [2.0, 2.0]),
        ({"rate": 1, "at": (0.0, 1.0)}, {"rate": 2, "at": (2.0, 1.0)}, {"rate": 1.5, "at": (1, 1)}),
        (Pair(1, True), Pair(2, False), Pair(1.5, 0.5)),
    ],
)
def test_statistics_have_the_form_of_an_input(low, high, mean):
    record = statistics_of(low, high).of_buffers([np.array([[0, 4]]), np.array([[1, 4]])])
    assert record["mean"] == mean


class Guarded:
    """An input that is not to be read as an array."""

    def __array__(self, *arguments, **options):
        raise LookupError("which of its arrays?")


@pytest.mark.parametrize(
    "inputs",
    [
        ("text",),
        (Guarded(),),
        ({"mesh": "fine", "rate": 1.0},),
        (None,),
        ((),),
        (object(),),
        ([1, [2, 3]], [1, [2, 3, 4]]),
        ({"a": 1}, {"b": 1}),
        (np.zeros(MOST_NUMBERS + 1),),
        ([0.0] * (MOST_NUMBERS + 1),),
        (1.0, "text"),
        (np.zeros(2), 3.0),
        (np.array([1j]),),
    ],
)
def test_other_inputs_have_none(inputs):
    statistics = statistics_of(*inputs, inputs[0])
    assert statistics.of_buffers([np.array([[0, 3]])]) is None


@pytest.mark.parametrize("large", [np.inf, 1e200])
def test_numbers_without_a_spread_have_none(large):
    """And no warnings, which would be in the output of the study once a second."""
    record = statistics_of(large, 1.0).of_buffers([np.array([[0, 1], [1, 1]])])
    assert record["mean"] == large / 2
    assert not np.isfinite(record["std"])


def test_samples_of_other_programs_do_not_count():
    statistics = statistics_of(1.0, 5.0)
    assert statistics.of_buffers([NO_KEYS]) is None
    assert statistics.of_buffers([np.array([[2**40, 3], [2, 1]])]) is None
    record = statistics.of_buffers([np.array([[2**40, 3], [1, 1]])])
    assert record == {"mean": 5.0, "std": 0.0}


class Watched(Callback):
    """Keeps what records have of the buffers, and lets the second simulation begin then."""

    def __init__(self, path):
        self.path = path
        self.records = []

    def on_round_end(self, trainer, record):
        if "buffer_inputs" in record:
            self.records.append(record)
            self.path.touch()


@pytest.mark.parametrize("workers", [1, 2])
def test_records_have_the_statistics_of_the_buffers(local, tmp_path, workers):
    recorded = tmp_path / "recorded"

    def simulate(parameters):
        if parameters[0] > 1:
            wait_for_file(recorded)
        for step in range(40):
            yield np.full(6, step, np.float32), np.int64(step % 3)

    watched = Watched(recorded)
    trainer = build_trainer(local, workers, mlp(), SGD)
    fit_online(
        trainer,
        simulate,
        [(1.0, 10.0), (3.0, 20.0)],
        buffer=BufferSpec("Reservoir", 16, threshold=4),
        batch_size=2,
        record_every=0.01,
        callbacks=[watched],
    )
    first, *later = (record["buffer_inputs"] for record in watched.records)
    assert first == {"mean": (1.0, 10.0), "std": (0.0, 0.0)}
    for statistics in later:
        mean = np.array(statistics["mean"])
        share = (mean[0] - 1) / 2  # of the second simulation
        np.testing.assert_allclose(mean, [1 + 2 * share, 10 + 10 * share])
        spread = np.sqrt(share * (1 - share))
        np.testing.assert_allclose(statistics["std"], [2 * spread, 10 * spread], atol=1e-7)
    assert flatten(watched.records[0])["buffer_inputs.mean[1]"] == 10.0
