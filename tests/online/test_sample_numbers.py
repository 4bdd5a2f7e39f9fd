"""Every sample that is trained on has the numbers of its simulation and step with which it was
sent.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from compss_train import BufferSpec, SampleSender
from compss_train.buffers import TimeStep
from compss_train.model.value_encoding import decode_value, encode_value
from compss_train.online.intake import NUMBERS
from compss_train.online.online_job import OnlineJob
from compss_train.online.options import UNCOUNTED
from tests.buffers.kinds import ALL, PLAIN, STEPS, Thread, make
from tests.net.plain_clients import no_threads_left
from tests.online.fits import build_trainer, fit_online
from tests.online.sample_streams import send_stream
from tests.online.simulations import (
    free_port,
    increment,
    kill_process,
    raise_error,
    read_count,
    slow_copy,
    wait_for_file,
)
from tests.online.stub_fits import StubWorker

pytestmark = pytest.mark.usefixtures("check_threads")

# Of a worker's buffer


def check(got, paired):
    """Check the numbers of samples, whose value is 100 times their stream plus their index."""
    for part in got if paired else [got]:
        simulations, steps = (part.simulation, part.step) if paired else part[NUMBERS].T
        assert simulations.dtype == steps.dtype == np.int64
        values = (part.data[0] if paired else part["x"]).flatten().tolist()
        assert values == (100 * simulations + (steps if paired else steps // 3)).tolist()


@pytest.mark.parametrize("kind", ALL)
@given(
    bursts=st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, STEPS), st.integers(1, 4)),
        min_size=1,
        max_size=6,
    ),
    seed=st.integers(0, 9),
)
def test_buffers_keep_the_numbers_through_repeated_streams_and_saves(kind, bursts, seed):
    """A stream that runs again sends what is missing, to a worker that has loaded its save."""
    paired = kind not in PLAIN
    offsets = {}
    state = None
    for stream, end, gets in bursts:
        with no_threads_left():
            stub = StubWorker(make(kind, 40, seed=seed), paired=paired, offsets=offsets)
            try:
                if state is not None:
                    stub.buffer.load_state_dict(decode_value(encode_value(state)))
                with stub.connect(stream) as connection:
                    for number in range(connection.offset, end):
                        connection.send(number, step=number if paired else 3 * number)
                    assert "ended" in connection.end()
                for _ in range(gets):
                    if stub.buffer.is_ready():
                        check(stub.buffer.get_batch(1), paired)
                held = stub.buffer.keys(NUMBERS).tolist()
                state, offsets = stub.receiver.snapshot()
                assert held == (
                    state["keys"] if paired else state["samples"][NUMBERS].tolist() if held else []
                )
            finally:
                stub.close()


def test_without_a_step_of_its_own_a_samples_step_is_its_index_in_its_stream(make_stub):
    stub = make_stub(make("FIFO", 9))
    for stream, samples in ((4, 3), (0, 2)):
        send_stream(stub, stream, samples)
    assert stub.buffer.get_batch(5)[NUMBERS].tolist() == [[4, 0], [4, 1], [4, 2], [0, 0], [0, 1]]


# Of a fit


@dataclass(frozen=True)
class Numbered:
    """Yields samples that hold their numbers; ``fault`` is called at two samples, once each."""

    folder: Path
    own_steps: bool
    fault: object = None

    def __call__(self, simulation):
        for index in range(STEPS):
            if (
                self.fault
                and (simulation, index) in ((1, 4), (3, 7))
                and not increment(self.folder / str(simulation))
            ):
                self.fault()
            step = 2 * index % 7 + index if self.own_steps else index
            sample = np.float32([simulation, step]), np.float32([simulation + step])
            yield (step, *sample) if self.own_steps else sample


@dataclass(frozen=True)
class Checked:
    """A training step that compares the batch with its context; its process is killed in the given
    batch, once.
    """

    folder: Path
    dies_in: int | None = None

    def __call__(self, model, batch, context):
        x, _ = batch
        held = x.reshape(len(x), -1, 2).numpy().astype(np.int64)
        held = held if held.shape[1] > 1 else held[:, 0]  # of pairs (n, 2, 2)
        for numbers, own in ((context.simulations, held[..., 0]), (context.steps, held[..., 1])):
            assert isinstance(numbers, np.ndarray)
            assert numbers.dtype == np.int64
            np.testing.assert_array_equal(numbers, own)
        if context.number == self.dies_in and not increment(self.folder / "died"):
            kill_process()
        return {"loss": model(x).mean(), "checked": len(x)}


def side_by_side(earlier, later):
    return torch.cat([earlier.data[0], later.data[0]], 1), later.data[1]


BUFFERS = {
    "FIFO": BufferSpec("FIFO", 16),
    "FIRO": BufferSpec("FIRO", 16, threshold=5),
    "Reservoir": BufferSpec("Reservoir", 12, threshold=5),
    "BatchReservoir": BufferSpec("BatchReservoir", 12, threshold=5),
    "SimPairedReservoir": BufferSpec(
        "SimPairedReservoir", 24, threshold=5, sweep_size=9, nb_time_steps=2 * STEPS
    ),
}


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("happens", ["nothing", "simulations fail", "a worker dies"])
def test_a_step_knows_which_sample_is_which(local, tmp_path, kind, happens, recwarn):
    """Also if simulations run again, and if a worker goes on from its save."""
    paired = kind not in PLAIN
    step = Checked(tmp_path, 2 if happens == "a worker dies" else None)
    trainer = build_trainer(
        local,
        2,
        nn.Linear(4 if paired else 2, 1),
        loss=None,
        training_step=step,
        transform=slow_copy,
    )
    simulate = Numbered(
        tmp_path,
        paired or happens == "nothing",
        raise_error if happens == "simulations fail" else None,
    )
    pairing = {"pairing": side_by_side} if paired else {}
    options = {
        "buffer": BUFFERS[kind],
        "batch_size": 4,
        "count": 2,
        "checkpoint_every": 1e-6,
        **pairing,
    }
    fit_online(trainer, simulate, range(6), **options)
    assert trainer.history[-1]["simulations"]["done"] == 6
    assert sum(read_count(path) > 0 for path in tmp_path.iterdir()) == {
        "nothing": 0,
        ("simulations fail"): 2,
    }.get(happens, 1)
    assert all(record["checked"] > 0 for record in trainer.history if record["samples"])


def test_senders_give_steps_and_are_counted_when_they_connect(local):
    """One that is started again under its name keeps its number."""
    address = f"tcp://127.0.0.1:{free_port()}"

    def send(name, number, samples):
        with SampleSender(address, "token", name) as sender:
            for step in range(5, 5 + samples):
                sender.send(np.float32([number, step]), 0.0, step=step)
            if samples < 3:
                raise_error()

    def send_all():
        with pytest.raises(ArithmeticError):
            send("a", 0, 2)
        send("b", 1, 3)
        send("a", 0, 3)

    trainer = build_trainer(local, 2, nn.Linear(2, 1), loss=None, training_step=Checked(Path()))
    sending = Thread(send_all)
    with pytest.warns(UserWarning, match="sender 'a' has failed and may reconnect"):
        fit_online(trainer, None, (), senders=2, address=address, token="token", batch_size=2)
    sending.result()
    assert trainer.history[-1]["received"] == 6
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 2, "failed": 0}


@pytest.mark.parametrize(
    ("inputs", "first"), [([5, 6, 7], 3), (iter([5, 6, 7]), UNCOUNTED)], ids=["list", "iterator"]
)
def test_simulations_have_the_numbers_of_their_inputs_beside_senders(
    local, tmp_path, inputs, first
):
    """Whichever connects first; a sender's number is above them."""
    address = f"tcp://127.0.0.1:{free_port()}"
    sent = tmp_path / "sent"

    def simulate(value):
        wait_for_file(sent)
        for step in range(3):
            yield np.float32([value - 5, step]), np.float32([0])

    def send():
        with SampleSender(address, "token") as sender:
            for step in range(4):
                sender.send(np.float32([first, step]), np.float32([0]))
        sent.touch()

    trainer = build_trainer(local, 2, nn.Linear(2, 1), loss=None, training_step=Checked(Path()))
    sending = Thread(send)
    fit_online(trainer, simulate, inputs, senders=1, address=address, token="token", batch_size=2)
    sending.result()
    assert trainer.history[-1]["received"] == 13


def test_pairs_may_have_several_inputs_or_no_targets():
    drawn = [
        TimeStep(np.array([3, 4]), np.array([step, 5]), (torch.full((2, 1), step),))
        for step in (1, 2)
    ]
    inputs = (drawn[0].data[0], drawn[1].data[0])
    for made, expected in {
        "both": ((inputs, drawn[1].data[0]), (inputs, drawn[1].data[0])),
        "x": (inputs[0], (inputs[0], None)),
        "of x": (drawn[0].data, (inputs[0], None)),
        "several": ((*inputs, inputs[0]), ((*inputs, inputs[0]), None)),
    }.values():
        batch = OnlineJob.make_batch(None, drawn, 0, 0, pairing=lambda *_, made=made: made)
        assert (batch.x, batch.y) == expected
        assert batch.simulations.tolist() == [[3, 3], [4, 4]]
        assert batch.steps.tolist() == [[1, 2], [5, 5]]


def test_a_fit_without_simulations_has_no_numbers(local):
    def step(model, batch, context):
        assert context.simulations is context.steps is None
        return model(batch[0]).mean()

    trainer = build_trainer(local, 1, nn.Linear(2, 1), loss=None, training_step=step)
    trainer.fit(np.zeros((8, 2), np.float32), num_epochs=1, batch_size=4, progress=False)


@pytest.mark.parametrize("part", [0, 1])
def test_pairings_return_tensors(part):
    """numpy makes arrays of the tensors that it is called with."""
    drawn = [TimeStep(np.zeros(2, int), np.arange(2), torch.zeros(2, 3)) for _ in range(2)]

    def pairing(earlier, later):
        batch = [earlier.data, later.data]
        batch[part] = np.concatenate([earlier.data, later.data], axis=1)
        return tuple(batch)

    with pytest.raises(TypeError, match="pairing returned a numpy array: return tensors"):
        OnlineJob.make_batch(None, drawn, 0, 0, pairing=pairing)
