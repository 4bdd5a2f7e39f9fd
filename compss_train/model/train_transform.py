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
        """Return x and y of a batch, transformed; ``by_sample`` calls ``reseed(number)`` before
        each sample.
        """
        if self.targets and y is None:
            raise ValueError(
                "train_transform takes x and y, but the data have no y; give one that takes x alone"
            )
        if not self.by_sample:
            return self._apply(x, y)
        samples = [self._sample(x, y, number, reseed) for number in range(len(leaves(x)[0]))]
        return _stacked([x for x, _ in samples]), (
            y if y is None else _stacked([y for _, y in samples])
        )

    def _sample(
        self, x: Any, y: Any, number: int, reseed: Callable[[int], object]
    ) -> tuple[Any, Any]:
        reseed(number)
        return self._apply(
            map_leaves(lambda part: part[number], x),
            y if y is None else map_leaves(lambda part: part[number], y),
        )

    def _apply(self, x: Any, y: Any) -> tuple[Any, Any]:
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
    """Return ``build(train_transform=...)`` as a ``TrainTransform``; raise ``TypeError`` for other
    values.
    """
    return value if value is None or isinstance(value, TrainTransform) else TrainTransform(value)


def _takes_two(function: Callable[..., Any]) -> bool:
    try:
        signature = inspect.signature(
            function.forward if isinstance(function, nn.Module) else function
        )
    except (TypeError, ValueError):  # a callable that is not written in Python
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each for each in signature.parameters.values() if each.default is each.empty]
    return len([each for each in needed if each.kind in positional]) == 2


def _stacked(samples: Sequence[Any]) -> Any:
    columns = zip(*map(leaves, samples), strict=True)
    return rebuilt(
        samples[0], [torch.stack([torch.as_tensor(each) for each in column]) for column in columns]
    )
