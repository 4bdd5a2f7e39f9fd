"""Running an app in this process, and a small stand-in for Fashion-MNIST."""

import gzip
import os
import runpy
import signal
import struct
import sys
import threading
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.helpers.processes import ROOT
from tests.helpers.waiting import wait_until

APPS = ROOT / "apps"
APP_MODULES = {path.stem for path in APPS.glob("*.py")}


@pytest.fixture
def one_thread(monkeypatch):
    """Small networks gain nothing from more, which wait for each other long where cores are
    shared.
    """
    threads = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # of the processes that tests start
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def modules(monkeypatch):
    """Let the apps' modules be imported, and leave nothing of them behind: benchmarks may have such
    names, too.
    """
    others = {name: sys.modules.pop(name) for name in APP_MODULES if name in sys.modules}
    monkeypatch.syspath_prepend(APPS)
    yield
    for name in APP_MODULES:
        sys.modules.pop(name, None)
    sys.modules.update(others)


@pytest.fixture
def here(modules, monkeypatch, capsys, tmp_path):
    """Run an app in this process, in an empty folder, and leave nothing of it behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)

    def run_here(app, *options):
        monkeypatch.setattr(sys, "argv", [f"{app}.py", *map(str, options)])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(ROOT / "apps" / f"{app}.py"), run_name="__main__")
        printed = capsys.readouterr()
        return SimpleNamespace(returncode=end.value.code, stdout=printed.out, stderr=printed.err)

    return run_here


@pytest.fixture
def ctrl_c_when():
    """Press Ctrl-C in this process once a condition holds; tests of the trainer press it for
    workers too.
    """
    threads = []

    def press(condition):
        wait_until(condition)
        os.kill(os.getpid(), signal.SIGINT)

    def start(condition):
        threads.append(threading.Thread(target=press, args=(condition,)))
        threads[0].start()

    yield start
    threads[0].join()


@pytest.fixture
def images(tmp_path):
    """A folder with a small stand-in for Fashion-MNIST: the class is the row that is bright."""
    folder = tmp_path / "images"
    folder.mkdir()
    for part, samples in (("train", 240), ("t10k", 60)):
        labels = np.random.default_rng(samples).integers(10, size=samples, dtype=np.uint8)
        pixels = np.zeros((samples, 28, 28), np.uint8)
        pixels[np.arange(samples), 2 * labels] = 255
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(idx(pixels))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(idx(labels))
    return folder


def assert_one_line_error(done, *parts):
    assert done.returncode == 1, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert ": error: " in done.stderr
    for part in parts:
        assert part in done.stderr


def assert_wrong_option(done, *parts):
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in done.stderr.splitlines()[-1]


def assert_is_a_picture(path, least):
    """It has so many pixels along each side, and more than a few colors."""
    from matplotlib import image

    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    pixels = np.uint8(image.imread(path) * 255)
    assert min(pixels.shape[:2]) > least
    assert len(np.unique(pixels.copy().view(np.uint32))) > 20


def idx(array):
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return gzip.compress(header + array.tobytes())
