"""Small files, and an index of them."""

import numpy as np
import pytest

from tests.data.npz_files import write


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the working directory, with files of 1, 2 and 3 samples."""
    monkeypatch.chdir(tmp_path)
    for number in range(3):
        write(f"{number}.npz", number + 1)
    return tmp_path


@pytest.fixture
def files(tmp_path):
    for number in range(3):
        np.savez(
            tmp_path / f"{number}.npz",
            x=np.zeros((number + 1, 2), np.float16),
            y=np.arange(number + 1),
        )
    return sorted(map(str, tmp_path.glob("*.npz")))


@pytest.fixture
def index(tmp_path):
    return tmp_path / "index.json"
