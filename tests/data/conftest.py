"""Folders of small files."""

import pytest

from tests.data.npz_files import write


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with files of 1, 2 and 3 samples."""
    monkeypatch.chdir(tmp_path)
    for number in range(3):
        write(f"{number}.npz", number + 1)
    return tmp_path
