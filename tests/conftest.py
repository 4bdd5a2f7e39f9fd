"""Fixtures for all tests: the engines, and small networks and data."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from compss_train import Engine, LocalEngine, SerialEngine
from compss_train.engines import CompssEngine

ENGINES = ("serial", "local")

# Examples take as long as they take: other tests run at the same time.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

# Its assertions are checked even by python -O, with which COMPSs runs programs.
pytest.register_assert_rewrite("tests.models")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a COMPSs application run the tests on its own engine: ``tests/compss`` starts one that does."""
    parser.addoption("--slow", action="store_true", help="run the tests that take long, too")
    parser.addoption("--engines", default=",".join(ENGINES), help="engines of the tests that run on every engine")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what takes long unless it is asked for."""
    for item in items:
        if item.get_closest_marker("slow") and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="takes long: --slow runs it"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes an ``engine`` on each of the engines asked for."""
    own = any("engine" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "engine" in metafunc.fixturenames and not own:
        metafunc.parametrize("engine", metafunc.config.getoption("--engines").split(","), indirect=True)


@pytest.fixture(scope="session")
def shared_local() -> Iterator[LocalEngine]:
    """One local engine for all tests that leave it working: starting processes takes seconds."""
    with LocalEngine(processes=2) as engine:
        yield engine


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Engine:
    """Every engine in turn."""
    if request.param == "serial":
        return SerialEngine()
    return CompssEngine() if request.param == "compss" else request.getfixturevalue("shared_local")
