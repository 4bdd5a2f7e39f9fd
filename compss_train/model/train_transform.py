"""``TrainTransform``: what is applied to training batches only, such as augmentation."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from compss_train._utils.nested import leaves, map_leaves, rebuilt


@dataclass(frozen=True)
class TrainTransform:
    """A function of training samples: augmentation, which evaluation and prediction leave out.

    Parameters
    ----------
    function:
        A callable or module, such as a transform of ``torchvision.transforms.v2``. Given x alone it
        returns x; given x and y it returns both, as a pair.
    targets:
        Whether it also takes y. By default (``None``) it does if the function has two required
        arguments.
    by_sample:
        Whether it is called for one sample at a time, without the first dimension, and its results
        are stacked, which must then have one shape. By default it gets whole batches.

    Raises ``TypeError`` if ``function`` is not callable.
    """

    function: Callable[..., Any]
    targets: bool | None = None
    by_sample: bool = False

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(
                f"train_transform={self.function!r}: give a function of x or (x, y), "
                "or TrainTransform"
            )
        if self.targets is None:
            object.__setattr__(self, "targets", _takes_two(self.function))

    def __call__(self, x: Any, y: Any, reseed: Callable[[int], object]) -> tuple[Any, Any]:
        """Return x and y of a batch, transformed.

        With ``by_sample`` it calls ``reseed(number)`` before each sample.
        """
        if self.targets and y is None:
            raise ValueError(
                "train_transform takes x and y, but the data have no y; give one that takes x alone"
            )
        if not self.by_sample:
            return self._apply(x, y)
        xs = []
        ys = []
        for number in range(len(leaves(x)[0])):
            reseed(number)
            sample_x, sample_y = self._apply(_sample(x, number), _sample(y, number))
            xs.append(sample_x)
            ys.append(sample_y)
        return _stacked(xs), None if y is None else _stacked(ys)

    def _apply(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Return x and y of a batch or sample, transformed."""
        if not self.targets:
            return self.function(x), y
        result = self.function(x, y)
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise TypeError(
                f"train_transform returned a {type(result).__name__} for x and y; return both, "
                "as (x, y)"
            )
        return result[0], result[1]


def as_train_transform(value: Any) -> TrainTransform | None:
    """Return ``build(train_transform=...)`` as a ``TrainTransform``.

    Raises ``TypeError`` for other values.
    """
    return value if value is None or isinstance(value, TrainTransform) else TrainTransform(value)


def _takes_two(function: Callable[..., Any]) -> bool:
    """Return whether a function has two positional arguments without defaults."""
    if isinstance(function, nn.Module):
        function = function.forward
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a callable that is not written in Python
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [
        parameter
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind in positional
    ]
    return len(required) == 2


def _sample(values: Any, number: int) -> Any:
    """Return a sample of x or y; ``None`` without y."""
    return None if values is None else map_leaves(lambda part: part[number], values)


def _stacked(samples: Sequence[Any]) -> Any:
    """Return a batch of samples that have one structure."""
    columns = zip(*map(leaves, samples), strict=True)
    tensors = [torch.stack([torch.as_tensor(value) for value in column]) for column in columns]
    return rebuilt(samples[0], tensors)
