"""The demo of the buffers: what it prints and draws, how it ends, and the thread that feeds it."""

import functools
import re
import threading

import numpy as np
import pytest
import torch

from compss_train.buffers import FIFO
from tests.apps.conftest import assert_is_a_picture, assert_one_line_error, assert_wrong_option

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def demo(here, monkeypatch, tmp_path):
    """Run the demo on a machine without Fashion-MNIST."""
    import datasets

    monkeypatch.setattr(datasets, "FASHION_MNIST_FOLDER", tmp_path / "nowhere")
    return functools.partial(here, "buffers_demo")


def rows(text):
    """Return the table's rows by the buffer's name."""
    found = re.findall(
        r"^(\S.*?) {2,}([\d.]+)% +([\d,]+) +([\d.]+) +([\d.]+)%$", text, re.MULTILINE
    )
    return {name: tuple(float(cell.replace(",", "")) for cell in cells) for name, *cells in found}


def test_the_reservoir_keeps_what_the_fifo_forgets(demo, tmp_path):
    done = demo()
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "no Fashion-MNIST in" in done.stdout.splitlines()[0]
    table = rows(done.stdout)
    assert list(table) == ["FIFO", "FIRO", "Reservoir", "BatchReservoir", "all data shuffled"]
    accuracy = {name: row[0] for name, row in table.items()}
    assert accuracy["FIFO"] < 25
    assert accuracy["FIRO"] > accuracy["FIFO"] + 25
    assert accuracy["Reservoir"] > accuracy["FIFO"] + 40
    assert accuracy["all data shuffled"] > accuracy["Reservoir"]
    batches, repetitions = (np.array([row[column] for row in table.values()]) for column in (1, 2))
    np.testing.assert_array_equal(batches[[0, 1, 4]], 180)
    np.testing.assert_array_equal(repetitions[[0, 1, 4]], 1)
    assert (repetitions[2:4] > 3).all()
    assert all(row[3] == 0 for row in table.values())
    assert_is_a_picture(tmp_path / "runs" / "buffers_demo" / "buffers.png", 400)


WRONG = {
    "--buffer-size 0": ("--buffer-size=0", "at least 1"),
    "--batches-per-chunk -1": ("--batches-per-chunk=-1", "at least 1"),
    "--threshold -1": ("--threshold=-1", "at least 0"),
    "--threshold 101 --buffer-size 100": ("--threshold=101", "larger buffer"),
    "--lr nan": ("--lr=nan", "above 0"),
    "--seed -1": ("seed=-1", "at least 0"),
    "--chunk many": ("--chunk", "'many'"),
}


def test_what_is_wrong_is_said_in_one_line(demo, tmp_path, monkeypatch):
    for options, parts in WRONG.items():
        assert_wrong_option(demo(*options.split()), *parts)
    (tmp_path / "file").write_text("")
    assert_one_line_error(demo("--output", tmp_path / "file"), "--output", "file")
    assert_one_line_error(demo("--data", "nowhere"), "nowhere", "apt install dataset-fashion-mnist")
    assert_one_line_error(demo("--lr", 1e30), "lower the learning rate", "--lr")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert_one_line_error(demo(), "pip install matplotlib")


@pytest.fixture
def producer(modules):
    from streams import Producer

    return Producer


STREAM = (torch.arange(100.0), torch.arange(100))


def test_the_producer_puts_the_whole_stream_by_turns(producer):
    for capacity, chunk, per_chunk in ((8, 50, 1), (100, 7, 3), (9, 9, 9)):
        with producer(FIFO(capacity), STREAM, chunk) as stream:
            got = torch.cat([y for _, y in stream.batches(8, per_chunk)])
        assert got.tolist() == list(range(100))


def test_exceptions_of_either_thread_end_both(producer):
    buffer = FIFO(50)
    buffer.put((torch.zeros(3), torch.tensor(0)))
    with pytest.raises(ValueError, match="one structure"), producer(buffer, STREAM, 10) as stream:
        list(stream.batches(1, 1))
    assert buffer.reception_over
    with pytest.raises(ZeroDivisionError), producer(FIFO(5), STREAM, 10) as stream:
        [1 / 0 for _ in stream.batches(2, 1)]
    assert "producer" not in [thread.name for thread in threading.enumerate()]
