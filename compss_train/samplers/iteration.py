"""``Iteration`` over the batches of a sampler: how many of them a loop has received."""

import sys
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from compss_train._utils.private_names import fetched_ahead


class Steps:
    """Where an iteration is in its epoch: how many batches were requested, and received.

    A ``DataLoader`` with processes requests a fixed number of batches first, and then another one
    with each batch that it returns, also after the last one.
    """

    def __init__(self, start: int, ahead: int = 0, *, is_uncertain: bool = False) -> None:
        self.is_uncertain = is_uncertain
        """Whether batches were fetched ahead, and nobody knows which of them were received."""
        self._recent = deque([start] * (ahead + 1), ahead + 1)
        """``requested`` after the requests that are fetched ahead, and after the one before."""
        self.requested = start

    @classmethod
    def of_loader(cls, frame: FrameType) -> "Steps":
        """Return the steps of an iteration that a frame, perhaps a ``DataLoader``'s, begins."""
        is_direct = True
        caller = frame
        loader = fetched_ahead(caller.f_locals.get("self"))
        while loader is None:
            if caller.f_back is None:
                return cls(0)
            is_direct = False
            caller = caller.f_back
            loader = fetched_ahead(caller.f_locals.get("self"))
        ahead, in_order = loader
        is_known = is_direct and in_order
        return cls(0, ahead if is_known else 0, is_uncertain=ahead > 0 and not is_known)

    def begin(self, start: int) -> None:
        """Begin at this batch of the epoch."""
        self.requested = start
        self._recent.extend([start] * len(self._recent))

    def note_request(self) -> None:
        """Note that a request has been answered, if only with the end of the epoch."""
        self._recent.append(self.requested)

    @property
    def received(self) -> int:
        """Number of the epoch's batches that the loop has received, and those before its start."""
        return self._recent[0]


class Iteration(Iterator[Any]):
    """An iteration, which begins with the first request.

    A ``DataLoader`` makes iterators that it does not use.
    """

    def __init__(self, begin: Callable[[Steps], Iterator[Any]]) -> None:
        self._begin = begin
        self._batches: Iterator[Any] | None = None

    def __next__(self) -> Any:
        if self._batches is None:
            self._steps = Steps.of_loader(sys._getframe(1))
            self._batches = self._begin(self._steps)
        try:
            return next(self._batches)
        finally:
            self._steps.note_request()
