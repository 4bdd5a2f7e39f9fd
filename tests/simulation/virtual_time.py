"""Programs read the virtual clock of a simulation wherever they read the time."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

EPOCH = 1_700_000_000.0


@contextmanager
def virtual_time(clock: Callable[[], float]) -> Iterator[None]:
    clocks = dict.fromkeys(("monotonic", "perf_counter"), clock)
    with patch.multiple(time, **clocks, time=lambda: EPOCH + clock()):
        yield
