"""Programs as the documents describe them, with nothing but their imports changed."""

import queue
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from compss_train.buffers import BufferDrainedError, TimeStep
from compss_train.integrations import melissa
from compss_train.integrations.dislib import EncapsulatedFunctionsDistributedEddl
from compss_train.integrations.djl import ParameterServer
from compss_train.parameter_server import LocalParameterServer
from compss_train.samplers import (
    DistributedSamplerViaLocallyShuffle,
    DistributedSamplerViaLocallyShuffleV2,
)
from tests.buffers.kinds import Thread
from tests.helpers.waiting import LIMIT
from tests.integrations.dislib_tensors import images
from tests.sources import interfaces

LAST = 67


@pytest.mark.parametrize("make", [queue.Queue, melissa.FIFO, melissa.make_buffer])
def test_a_pipeline_of_a_loader_and_a_model(make):
    """The page on queues: at most 10 items wait for the model, which marks each as done; the loader
    ends at 67.
    """
    data_queue = make(10)
    processed = []

    def load_data():
        item = 0
        while True:
            data_queue.put(item)
            if item == LAST:
                break
            item += 1

    def process_data():
        while True:
            data = data_queue.get()
            if data is None:
                break
            assert data_queue.qsize() <= 10
            processed.append(data)
            data_queue.task_done()

    loader = Thread(load_data)
    model = Thread(process_data)
    loader.result()
    Thread(data_queue.join).result()
    assert processed == list(range(LAST + 1))
    assert data_queue.empty()
    data_queue.put(None)
    model.result()


@pytest.mark.parametrize("kind", interfaces.BASES)
def test_a_server_that_trains_while_data_arrive(kind):
    """Melissa: one thread receives the time steps of simulations and puts them, the training loop
    gets them.
    """
    sweep_size = 6
    nb_time_steps = 5
    buffer = melissa.make_buffer(
        buffer_size=12,
        buffer_t=melissa.BufferType[kind],
        per_server_watermark=8,
        pseudo_epochs=1,
        batch_size=4,
        sweep_size=sweep_size,
        nb_time_steps=nb_time_steps,
        comm_size=1,
    )
    paired = kind == "SimPairedReservoir"

    def receive():
        for simulation in range(sweep_size):
            for step in range(nb_time_steps):
                data = torch.tensor([float(simulation), float(step)])
                buffer.put(TimeStep(simulation, step, data) if paired else data)
        buffer.signal_reception_over()

    receiver = Thread(receive)
    seen = []
    while True:
        try:
            got = buffer.get()
        except BufferDrainedError:
            break
        if paired:
            first, second = got
            assert first.simulation == second.simulation
            assert first.step < second.step
        parts = [part.data for part in got] if paired else [got]
        seen += [tuple(row) for part in parts for row in part.reshape(-1, 2).tolist()]
        buffer.task_done()
    receiver.result()
    Thread(buffer.join).result()
    every = {
        (float(simulation), float(step))
        for simulation in range(sweep_size)
        for step in range(nb_time_steps)
    }
    assert len(every - set(seen)) == buffer.unseen <= (sweep_size if paired else 0)
    assert set(seen) <= every
    if kind in ("FIFO", "FIRO"):
        assert len(seen) == len(every)
        assert (seen == sorted(seen)) == (kind == "FIFO")
    assert buffer.repetitions() @ np.arange(len(buffer.repetitions())) == len(seen)


OPTIONS = {"n_epocs_sync": 2, "shuffle_blocks": True, "shuffle_block_data": False}


@pytest.mark.parametrize("signature", interfaces.FITS)
def test_a_network_that_workers_train(signature, monkeypatch):
    """dislib.eddl: build, one of the fits with its arguments by name, and the parameters."""
    monkeypatch.setenv("COMPSS_TRAIN_ENGINE", "serial")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(6, 2), nn.Softmax(dim=1))
    encaps_function = EncapsulatedFunctionsDistributedEddl(num_workers=2)
    encaps_function.build(
        net=net,
        optimizer={"optimizer": "sgd", "lr": 0.1},
        loss="softmax_cross_entropy",
        metric="categorical_accuracy",
        num_gpu=0,
        num_nodes=1,
    )
    before = encaps_function.get_parameters()
    assert len(encaps_function.compss_object) == encaps_function.num_workers == 2
    name, _, arguments = signature.removesuffix(")").partition("(")
    options = {name: value for name, value in OPTIONS.items() if f" {name}=" in arguments}
    x_train, y_train = images()
    parameters = getattr(encaps_function, name)(
        x_train=x_train, y_train=y_train, num_batches_per_worker=3, num_epochs=2, **options
    )
    assert isinstance(parameters, np.ndarray)
    assert parameters is encaps_function.get_parameters() is encaps_function.model_parameters
    assert [array.shape for layer in parameters for array in layer] == [(2, 6), (2,)]
    assert (parameters[1][0] != before[1][0]).any()


def file_reader(opened):
    """Return a reader as the description asks for: the number of samples, or the arrays and their
    number.
    """

    def npz_reader(filename, get_data=False):
        with np.load(filename) as file:
            number = len(file[file.files[0]])
            if not get_data:
                return number
            opened.append(filename)
            return {key: file[key] for key in file.files}, number

    return npz_reader


@pytest.mark.parametrize(
    "sampler", [DistributedSamplerViaLocallyShuffle, DistributedSamplerViaLocallyShuffleV2]
)
@pytest.mark.parametrize("counted", [False, True])
def test_a_loop_over_many_files(sampler, counted, tmp_path):
    """PartiallyShuffle: in place of a ``DistributedSampler``, with a reader and the numbers of
    samples.
    """

    class Dataset:
        def __init__(self):
            self.files = [str(tmp_path / f"{number}.npz") for number in range(6)]
            self.resets = 0

        def __getitem__(self, batch):
            return batch

        def reset(self):
            self.resets += 1

    dataset = Dataset()
    opened = []
    files_len = {filename: 4 + number for number, filename in enumerate(dataset.files)}
    first = 0
    for filename, length in files_len.items():
        np.savez(filename, x=np.arange(first, first + length), y=np.zeros(length))
        first += length
    options = {"files_len": files_len} if counted else {}
    orders = []
    for epoch in range(2):
        numbers = []
        for rank in range(3):
            own = sampler(
                dataset,
                file_reader(opened),
                3,
                rank,
                True,
                8,
                batch_size=4,
                file_buffer=2,
                **options,
            )
            own.set_epoch(epoch)
            assert len(own) == 13
            opened.clear()
            for parts, none, files in DataLoader(dataset, sampler=own, batch_size=None):
                assert none is None
                assert len(parts) == len(files) == len({*files} & {*dataset.files})
                numbers += [int(number) for part in parts for number in part["x"]]
            assert len(set(opened)) == len(opened)
        assert (len(numbers), set(numbers)) == (39, set(range(39)))
        orders.append(numbers)
    assert orders[0] != orders[1]
    assert dataset.resets == 6


def test_devices_that_train_with_a_parameter_server():
    """DJL: every device pulls the value, pushes its gradient, and pulls what the optimizer has made
    of the sum.
    """
    barrier = threading.Barrier(2, timeout=LIMIT)
    with ParameterServer(LocalParameterServer({"optimizer": "sgd", "lr": 0.125})) as server:
        weights = [np.full(3, 8.0), np.full(3, 8.0)]
        server.init("0_weight", weights)
        for _ in range(3):
            server.push("0_weight", [2 * weight for weight in weights], -1)
            server.pull("0_weight", weights, 0)
        np.testing.assert_array_equal(weights, np.ones((2, 3)))
        server.init("shared", [np.zeros(1)])

        def step(device):
            barrier.wait()
            for number in range(50):
                server.push("shared", [np.array([8.0 * (number % 2 or -1)])], device)

        for thread in [Thread(step, device) for device in range(2)]:
            thread.result()
        total = [np.empty(1)]
        server.pull("shared", total, 0)
        np.testing.assert_array_equal(total, [[0.0]])
