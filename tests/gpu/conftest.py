"""Skips all tests of GPUs in one line where there is none, real or emulated."""

import pytest
import torch

from tests.emulated_gpu import library

REAL = torch.version.cuda is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs the hardware on emulated devices."""
    for item in items:
        if item.get_closest_marker("hardware") and not REAL:
            item.add_marker(pytest.mark.skip(reason="needs a real GPU"))


def pytest_ignore_collect(collection_path: object) -> bool | None:
    if torch.cuda.is_available():
        return None
    pytest.skip(f"no GPU, and none is emulated: {library.why_not() or 'python -m tests.emulated_gpu does'}")
