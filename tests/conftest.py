"""Fixtures for all tests: the engines, and small networks and data.

Nothing at its top imports torch: the process that only hands out tests to others has no use for it.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from compss_train import Engine
    from tests.helpers.messages import Messages
    from tests.helpers.shared_engine import SharedEngine

ENGINES = ("serial", "local")
MEMORY = Path("/dev/shm")
ROOM = 2**32

# Examples take as long as they take, as other tests run at the same time, and are drawn anew in
# every run.
SLOWLY = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}
settings.register_profile("few", max_examples=8, **SLOWLY)
settings.register_profile("many", max_examples=200, **SLOWLY)

# Its assertions are checked even by python -O, with which COMPSs runs programs.
pytest.register_assert_rewrite("tests.helpers")


@pytest.fixture(autouse=True)
def _warnings_of_one_program() -> None:
    """Let each test be a program of its own for what is warned of once."""
    from compss_train._utils.validation import warn_once

    warn_once.cache_clear()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options, such as the engines: ``tests/compss`` runs tests in an application of COMPSs."""
    parser.addoption("--slow", action="store_true", help="run the tests that take long, too")
    parser.addoption(
        "--soak-minutes", type=float, default=60.0, help="length of the longest of the soak tests"
    )
    parser.addoption(
        "--write-messages", action="store_true", help="take the words of errors as they are now"
    )
    parser.addoption(
        "--engines",
        default=",".join(ENGINES),
        help="engines of the tests that run on every engine",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Heed Ctrl-C, let threads that wait sleep, and look for no garbage while tests are imported.

    A shell that runs the tests in the background makes them, and all that they start, ignore
    Ctrl-C. Threads of torch wait in a loop otherwise, and take the cores that other tests need:
    fits with two threads then take ten times as long. Looking for garbage takes a quarter of the
    time of imports, and what these make stays. Files of tests are in memory where there is room:
    thousands are synced and removed, which takes milliseconds on a disk.
    """
    if config.getoption("--write-messages") and config.getoption("numprocesses", None):
        raise pytest.UsageError("--write-messages writes one file: run it without -n")
    settings.load_profile("many" if config.getoption("--slow") else "few")
    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()


def pytest_collection_finish() -> None:
    """Look for garbage from now on, in what is made from now on, and not after every batch."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what takes long, and run each combination of parameters on one engine only.

    ``--slow`` asks for all.
    """
    if config.getoption("--slow"):
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="takes long: --slow runs it"))
    if config.getoption("--engines") == ",".join(ENGINES):
        items[:] = each_on_one_engine(items)


def each_on_one_engine(items: list[pytest.Item]) -> list[pytest.Item]:
    """Leave out what runs on another engine.

    The first combination runs on the first engine, the next on the next, and so on in turn. Tests
    without other parameters, and those of engines, run on all of them.
    """
    numbers_of_engines: dict[str, dict[Any, int]] = {}
    numbers_of_combinations: dict[str, dict[tuple[int, ...], int]] = {}
    kept = []
    for item in items:
        parameters = dict(item.callspec.params) if hasattr(item, "callspec") else {}
        engine = parameters.pop("engine", None)
        if engine is None or not parameters or "tests/engines" in item.nodeid:
            kept.append(item)
            continue
        test = item.nodeid.partition("[")[0]
        engines = numbers_of_engines.setdefault(test, {})
        combinations = numbers_of_combinations.setdefault(test, {})
        combination = tuple(id(value) for value in parameters.values())
        engine_number = engines.setdefault(engine, len(engines))
        combination_number = combinations.setdefault(combination, len(combinations))
        if combination_number % len(ENGINES) == engine_number:
            kept.append(item)
    return kept


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes an ``engine`` on each one of ``--engines``.

    Where these are the default, it also runs on ``MORE_ENGINES`` of its module.
    """
    marks = metafunc.definition.iter_markers("parametrize")
    if "engine" not in metafunc.fixturenames or any("engine" in mark.args[0] for mark in marks):
        return
    engines = metafunc.config.getoption("--engines").split(",")
    if engines == list(ENGINES):
        engines += getattr(metafunc.module, "MORE_ENGINES", ())
    metafunc.parametrize("engine", engines, indirect=True)


@pytest.fixture(scope="session")
def shared_local() -> Iterator[SharedEngine]:
    """One local engine for all tests, of at least two processes: to start them takes seconds."""
    from tests.helpers.shared_engine import SharedEngine

    engine = SharedEngine(processes=2)
    yield engine
    engine.end()


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """A Ray cluster of two nodes."""
    from tests.helpers.ray_cluster import two_nodes

    with two_nodes() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def shared_ray(ray_cluster: Any) -> Iterator[Engine]:
    """One engine on the two nodes."""
    from tests.helpers.ray_cluster import SharedRayEngine

    engine = SharedRayEngine()
    yield engine
    engine.end()


@pytest.fixture(scope="session")
def messages_of_errors(request: pytest.FixtureRequest) -> Iterator[Messages]:
    """The words that errors have: ``tests/messages.json``."""
    from tests.helpers.messages import Messages

    messages = Messages(writes=request.config.getoption("--write-messages"))
    request.config.pluginmanager.register(messages)
    yield messages
    messages.end()


@pytest.fixture
def raises(request: pytest.FixtureRequest, messages_of_errors: Messages, tmp_path: Path) -> Any:
    """Check an error's type, a name in it, and its words: ``with raises(ValueError, "seed"):``."""
    test = request.node.nodeid.partition("[")[0]
    return partial(messages_of_errors.raises, test, tmp_path)


@pytest.fixture
def forked_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of a test's own local engines start within a moment."""
    from tests.helpers.shared_engine import fork_processes

    fork_processes(monkeypatch)


@pytest.fixture
def soak_minutes(request: pytest.FixtureRequest) -> float:
    """How long a soak test disturbs a program."""
    return float(request.config.getoption("--soak-minutes"))


@pytest.fixture
def soak_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a program that is disturbed, and has a temporary folder of its own in it."""
    faulthandler.cancel_dump_traceback_later()  # pytest's, after less time than it takes
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return tmp_path


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Engine:
    """Every engine in turn."""
    from compss_train import SerialEngine
    from compss_train.engines import CompssEngine

    if request.param == "serial":
        return SerialEngine()
    if request.param == "compss":
        return CompssEngine()
    if request.param == "simulated":
        from tests.simulation.engine import SimulatedEngine

        return SimulatedEngine()
    return request.getfixturevalue(f"shared_{request.param}")
