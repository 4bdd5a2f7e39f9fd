"""Warns of callbacks that change a data set, which workers read as it was at the start of a fit."""

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch

from compss_train._utils.private_names import version_of
from compss_train._utils.validation import warn_user
from compss_train.data.sample_reading import SampleReader
from compss_train.training.callback import Callback

_MOST_ITEMS = 100
"""Attributes of an object, and items of a container, that are looked at."""

_MOST = 1_000
"""Values that are looked at in all, those of a data set before those of what it holds."""

_PLAIN = (bool, int, float, complex, str, bytes)


class DataChanges:
    """The data sets that a fit reads, and the callbacks that change what their attributes hold.

    What changes while nothing but a callback runs is its doing. Numbers inside arrays are not seen.
    """

    def __init__(self, readers: Mapping[str, SampleReader | None]) -> None:
        self._readers = readers
        """What reads them, by what their names begin with."""
        self._warned: list[Callback] = []

    @contextmanager
    def of(self, callback: Callback) -> Iterator[None]:
        """Warn, once, of a callback that changes a data set in the block."""
        before = self._attributes()
        yield
        after = self._attributes()
        changed = [
            name
            for name, value in after.items()
            if name in before and before[name] is not value and before[name] != value
        ]
        if changed and callback not in self._warned:
            self._warned.append(callback)
            warn_user(
                f"{type(callback).__name__} changes {changed[0]}, but worker processes read the "
                "data set as it was at the start of the fit: give it a method set_epoch(epoch), "
                "which they call before each epoch, or call fit for each stage"
            )

    def _attributes(self) -> dict[str, object]:
        """Return what tells the values of attributes, by names such as ``dataset.strength``.

        That is nothing for ``None``: what is opened on first use is not changed.
        """
        found: dict[str, object] = {}
        waiting: deque[tuple[str, Any]] = deque()
        for beginning, reader in self._readers.items():
            if reader is not None:
                parts = vars(reader).items()
                waiting.extend((beginning + part_name, part) for part_name, part in parts)
        seen: set[int] = set()
        while waiting and len(found) < _MOST:
            name, value = waiting.popleft()
            if isinstance(value, _PLAIN):
                found[name] = value
            elif isinstance(value, torch.Tensor):
                found[name] = (id(value), version_of(value))
            elif value is not None and id(value) not in seen:
                seen.add(id(value))
                found[name] = id(value)
                held = islice(_parts_of(value), _MOST_ITEMS)
                waiting.extend((name + part_name, part) for part_name, part in held)
        return found


def _parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Iterate over what an object holds, with what its name has besides the object's."""
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{number}]", part) for number, part in enumerate(value))
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        yield from ((f".{key}", part) for key, part in vars(value).items())
