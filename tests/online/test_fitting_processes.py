"""fit_online: samples of other programs, back-pressure on simulations, and cleanup."""

import itertools
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from torch import nn

from compss_train import BufferSpec
from tests.helpers.models import SGD
from tests.online.fits import build_trainer, fit_online
from tests.online.simulations import (
    COUNTING_SGD,
    CountingNet,
    EndlessSimulation,
    OneHotSimulation,
    free_port,
    increment,
    read_count,
    sample_counts,
    sum_loss,
    wait_for_file,
)

# Senders

SENDER = textwrap.dedent(
    """
    import sys
    import numpy as np
    from compss_train.online import SampleSender

    first, stop, samples, address, token = sys.argv[1:]
    with SampleSender(address, token, timeout=30) as sender:
        for number in range(int(first), int(stop)):
            x = np.zeros(int(samples), np.float32)
            x[number] = 1
            sender.send(x, 0.0)
    print("sent", sender.delivered)
    """
)


def test_other_programs_send_samples(local):
    """The sender starts before the fit; a simulation of the fit runs at the same time."""
    address = f"tcp://127.0.0.1:{free_port()}"
    sender = subprocess.Popen(
        [sys.executable, "-c", SENDER, "0", "40", "50", address, "secret"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        trainer = build_trainer(local, 2, CountingNet(50), COUNTING_SGD, sum_loss)
        parameters = fit_online(
            trainer, OneHotSimulation(50), [range(40, 50)], senders=1, address=address, token="secret"
        )
        assert sender.communicate(timeout=20) == ("sent 0\n", "")
        assert sender.returncode == 0
    finally:
        sender.kill()
        sender.wait()
    assert sample_counts(parameters, 2) == [1] * 50


# Back-pressure and cleanup


class BlockedNet(nn.Linear):
    """Trains after a file was created."""

    def __init__(self, inputs, path):
        super().__init__(inputs, 1)
        self.path = path

    def forward(self, x):
        (self.path / "training").touch()
        wait_for_file(self.path / "go")
        return super().forward(x)


@dataclass(frozen=True)
class LargeSamples:
    """Yields samples of 100 kB without end."""

    folder: Path

    def __call__(self, _):
        while True:
            increment(self.folder / "produced")
            yield np.zeros(25_000, np.float32), np.float32(0)


def test_simulations_wait_for_training(local, tmp_path):
    done = threading.Event()

    def steady():
        """Wait until production stops for a while."""
        wait_for_file(tmp_path / "training")
        before = -1
        while before != (before := read_count(tmp_path / "produced")):
            time.sleep(0.6)
        (tmp_path / "steady").write_text(str(before))
        (tmp_path / "go").touch()
        done.set()

    watcher = threading.Thread(target=steady)
    watcher.start()
    trainer = build_trainer(local, 1, BlockedNet(25_000, tmp_path), SGD, lambda output, target: output.mean())
    fit_online(
        trainer,
        LargeSamples(tmp_path),
        itertools.count(),
        batch_size=4,
        max_batches=3,
        buffer=BufferSpec("FIFO", 8),
    )
    assert done.wait(20)
    watcher.join()
    # A buffer, a batch, and the socket buffers of both sides, which Linux limits to 10 MB.
    assert 12 <= int((tmp_path / "steady").read_text()) < 12 + 200


def test_a_fit_leaves_nothing_behind(local, tmp_path):
    trainer = build_trainer(local, 1, CountingNet(10), COUNTING_SGD, sum_loss)

    def fits():
        fit_online(trainer, OneHotSimulation(10), [range(10)], batch_size=5)
        held_out = np.eye(10, dtype=np.float32), np.zeros(10, np.float32)
        fit_online(
            trainer, EndlessSimulation(10, tmp_path), itertools.count(), max_batches=2, validation_data=held_out
        )

    def state():
        me = psutil.Process()
        processes = [p for p in me.children(recursive=True) if "resource_tracker" not in " ".join(p.cmdline())]
        tcp = sum(len(process.net_connections("tcp")) for process in [me, *processes])
        files = [file for folder in local._folders.paths for file in Path(folder).rglob("*") if file.is_file()]
        return {
            "processes": sorted(process.pid for process in processes),
            "threads": sorted(thread.name for thread in threading.enumerate()),
            "files": len(files),
            "descriptors": me.num_fds(),
            "connections": tcp,
            "folders": len(list(Path(tempfile.gettempdir()).glob(f"compss_train-{me.pid}-*"))),
        }

    fits()
    before = settled(state)
    fits()
    fits()
    deadline = time.monotonic() + 5
    while (after := state()) != before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert after == before


def settled(state):
    before = None
    while before != (before := state()):
        time.sleep(0.2)
    return before
