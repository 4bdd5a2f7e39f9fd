"""Skips all tests of GPUs in one line where there is none, real or emulated."""

from collections.abc import Iterator

import pytest
import torch

from tests.emulated_gpu import library

REAL = torch.version.cuda is not None


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Start the thread of the backward passes with one thread, which it keeps, whichever test comes
    first.

    On a real GPU its first products take memory that they keep: cuBLAS's workspaces.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    if REAL:
        torch.nn.Linear(8, 8, device="cuda")(torch.ones(8, 8, device="cuda")).sum().backward()
    yield
    torch.set_num_threads(before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs the hardware on emulated devices."""
    for item in items:
        if item.get_closest_marker("hardware") and not REAL:
            item.add_marker(pytest.mark.skip(reason="needs a real GPU"))


def pytest_ignore_collect(collection_path: object) -> bool | None:
    if torch.cuda.is_available():
        return None
    pytest.skip(
        f"no GPU, and none is emulated: {library.why_not() or 'python -m tests.emulated_gpu does'}"
    )


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Let ``make test`` continue where all of these tests are skipped."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and not torch.cuda.is_available():
        session.exitstatus = pytest.ExitCode.OK
