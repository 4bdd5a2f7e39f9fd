"""Warns of changes that workers do not see: they have copies of the data set and of functions."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from types import FunctionType, MethodType
from typing import Any, TypeAlias

import torch

from compss_train._utils.private_names import state_tensors, version_of
from compss_train._utils.validation import warn_user
from compss_train.data.sample_reading import SampleReader
from compss_train.model.attributes.reader import NETWORK
from compss_train.model.copies import filled_cells
from compss_train.model.task_globals import changed_global, global_users, global_values
from compss_train.model.training_spec import TrainingSpec
from compss_train.training.callback import Callback

HeldValues: TypeAlias = Mapping[str, object]
"""What tells the values that objects hold, by names such as ``loss.beta``."""

_MOST_ITEMS = 100
"""Attributes of an object, and items of a container, that are looked at."""

_MOST = 1_000
"""Values that are looked at in all, those of an object before those of what it holds."""

_PLAIN = (bool, int, float, complex, str, bytes)

_OF_DATA = (
    "give the data set a method set_epoch(epoch), which they call before each epoch, or call fit "
    "for each stage"
)
_OF_FUNCTIONS = (
    "set numbers that they hold with trainer.set_hyperparameters(attributes={'loss.beta': 2.0}), "
    "or compute them from context.epoch in training_step="
)


class UnseenChanges:
    """What callbacks change in the data sets and functions of a fit, while workers have copies.

    What changes while nothing but a callback runs is its doing.
    """

    def __init__(self, spec: TrainingSpec) -> None:
        self._spec = spec
        self._data: dict[str, Any] = {}
        self._global_users = global_users(_functions_of(spec).values(), constants=True)
        self._warned: list[Callback] = []

    def watch(self, name: str, reader: SampleReader | None) -> None:
        """Look at the data set of a reader, too; there is none of columns or files."""
        self._data[name] = getattr(reader, "dataset", None)

    @contextmanager
    def of(self, callback: Callback) -> Iterator[None]:
        """Warn, once, of a callback that makes such changes in the block."""
        if callback in self._warned:
            yield
            return
        data = _held_values(self._data)
        functions = held_by_functions(self._spec)
        variables = global_values(self._global_users)
        yield
        in_data = _changed(data, _held_values(self._data))
        in_functions = _changed(functions, held_by_functions(self._spec))
        name = in_data or in_functions or changed_global(self._global_users, variables)
        if name:
            self._warned.append(callback)
            warn_user(
                f"{type(callback).__name__} changes {name}, but worker processes have copies from "
                f"the start of the fit: {_OF_DATA if in_data else _OF_FUNCTIONS}"
            )


def held_by_functions(spec: TrainingSpec) -> HeldValues:
    """Return what tells the values in what was given to ``build`` besides the network.

    A function may hold the network itself: the program may load into it what was trained.
    """
    networks = [spec.net] if spec.original is None else [spec.net, spec.original]
    parts = [part for net in networks for part in (*net.modules(), *state_tensors(net).values())]
    return _held_values(_functions_of(spec), without=parts)


def warn_of_changes(before: HeldValues, spec: TrainingSpec) -> None:
    """Warn of what has changed since an earlier fit, in functions that workers have copies of."""
    name = _changed(before, held_by_functions(spec))
    if name:
        warn_user(
            f"{name} has changed since the fit before, but workers have copies of what was given "
            f"to build: {_OF_FUNCTIONS}; or call build again"
        )


def _functions_of(spec: TrainingSpec) -> dict[str, Any]:
    """Return what was given to ``build`` besides the network, and keeps no measurements."""
    return {
        name: function
        for name, function in spec.roots().items()
        if name != NETWORK and not name.startswith("metric")
    }


def _changed(before: HeldValues, after: HeldValues) -> str | None:
    """Return the name of a value that is another one now; ``None`` for none."""
    for name, value in after.items():
        if name in before and before[name] is not value and before[name] != value:
            return name
    return None


def _held_values(roots: Mapping[str, Any], without: Iterable[object] = ()) -> HeldValues:
    """Return what tells the values that objects hold, numbers inside arrays excepted.

    That is nothing for ``None``: what is made on first use is not changed.
    """
    found: dict[str, object] = {}
    waiting: deque[tuple[str, Any]] = deque(roots.items())
    seen = {id(part) for part in without}
    while waiting and len(found) < _MOST:
        name, value = waiting.popleft()
        if isinstance(value, _PLAIN):
            found[name] = value
        elif value is None or id(value) in seen:
            continue
        elif isinstance(value, torch.Tensor):
            found[name] = (id(value), None if value.is_inference() else version_of(value))
        else:
            seen.add(id(value))
            found[name] = id(value)
            parts = islice(_parts_of(value), _MOST_ITEMS)
            waiting.extend((name + part_name, part) for part_name, part in parts)
    return found


def _parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Iterate over what an object holds, with what its name has besides the object's."""
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{number}]", part) for number, part in enumerate(value))
    elif isinstance(value, FunctionType):
        yield from ((f".{name}", part) for name, part in filled_cells(value).items())
        yield ".__defaults__", value.__defaults__
        yield ".__kwdefaults__", value.__kwdefaults__
    elif isinstance(value, MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, partial):
        yield ".func", value.func
        yield from ((f".args[{number}]", part) for number, part in enumerate(value.args))
        yield from ((f".{name}", part) for name, part in value.keywords.items())
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        yield from ((f".{name}", part) for name, part in vars(value).items())
