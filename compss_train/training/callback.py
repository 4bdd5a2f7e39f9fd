"""The base class of callbacks, and what tells them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from compss_train.trainer import DistributedTrainer


class Callback:
    """Does nothing; override what you need.

    Hooks run in the coordinator's thread, in the order of the list, and alternate strictly: a fit's start, then a
    round's start and end for each round (no end of one that is given up), then the fit's end, or an exception at
    any time. A hook that raises ends the fit with its exception, which names the callback;
    ``trainer.stop(reason)`` ends it in good order.
    """

    keeps_state: ClassVar[bool] = False
    """Whether it is told of rounds after all others, as it saves what they are, and of the fit's start and end
    before them: where its folder cannot be had, others have done nothing."""

    def on_fit_start(self, trainer: DistributedTrainer, total_samples: int | None) -> None:
        """Before the first round; ``total_samples`` is what will be trained in all, ``None`` where nobody knows."""

    def on_round_start(self, trainer: DistributedTrainer, number: int) -> None:
        """When the fit begins to wait for a round, whose tasks may have been running for a while."""

    def on_round_end(self, trainer: DistributedTrainer, record: dict[str, Any]) -> None:
        """After a round; ``record`` is its entry in ``trainer.history``."""

    def on_fit_end(self, trainer: DistributedTrainer) -> None:
        """After the last round, with the final parameters in the trainer."""

    def on_exception(self, trainer: DistributedTrainer, error: BaseException) -> None:
        """When a fit that this was told of ends by an exception, Ctrl-C included; it is raised afterwards."""

    def needs_state(self, number: int) -> bool:
        """Tell whether ``on_round_end`` of that round will call ``trainer.snapshot()``.

        Workers that merge without waiting for each other then wait once, as the snapshot has to be of one moment.
        """
        return False

    def watches(self) -> str | None:
        """Return the name of the number in records that it goes by, ``None`` for none."""
        return None

    def writes_to(self) -> Path | None:
        """Return the file or folder that no other callback may write to, ``None`` where there is none."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed fit needs to go on alike: numbers, texts and arrays, in dicts and lists."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from such a state; called before ``on_fit_start`` where a fit is resumed."""


class CallbackList:
    """The callbacks of one fit."""

    def __init__(self, callbacks: Sequence[Callback], trainer: DistributedTrainer) -> None:
        self.callbacks = tuple(sorted(callbacks, key=lambda callback: callback.keeps_state))
        self._trainer = trainer
        self._begun: list[Callback] = []
        self.saved: dict[str, Any] = {}
        """The states that callbacks go on from."""

    @contextmanager
    def fit(self, total_samples: int | None) -> Iterator[None]:
        """Tell of a fit's start, and of its end or exception."""
        try:
            self._load_states()
            keeping_first = sorted(self.callbacks, key=lambda callback: not callback.keeps_state)
            for callback in keeping_first:
                self._begun.append(callback)
                self._asked(callback, "on_fit_start", self._trainer, total_samples)
            yield
            self._tell(keeping_first, "on_fit_end")
        except BaseException as error:
            self._tell_exception(error)
            raise

    def needs_state(self, number: int) -> bool:
        """Tell whether a callback wants all that there is after a round."""
        return any(self._asked(callback, "needs_state", number) for callback in self.callbacks)

    def round_start(self, number: int) -> None:
        """Tell that a round is waited for."""
        self._tell(self.callbacks, "on_round_start", number)

    def round_end(self, record: dict[str, Any]) -> None:
        """Tell that a round has ended."""
        self._tell(self.callbacks, "on_round_end", record)

    def states(self) -> dict[str, Any]:
        """Return the states of those that have one, by name."""
        states = {name: self._asked(callback, "state_dict") for name, callback in self._by_name()}
        return {name: state for name, state in states.items() if state}

    def _load_states(self) -> None:
        for name, callback in self._by_name():
            if name in self.saved:
                self._asked(callback, "load_state_dict", self.saved[name])

    def _by_name(self) -> Iterator[tuple[str, Callback]]:
        """Iterate over the callbacks with the names of their classes and what they watch, numbered."""
        seen: Counter[str] = Counter()
        for callback in self.callbacks:
            watched = self._asked(callback, "watches")
            name = type(callback).__name__ if watched is None else f"{type(callback).__name__} of {watched}"
            seen[name] += 1
            yield f"{name} {seen[name]}", callback

    def _tell(self, callbacks: Iterable[Callback], hook: str, *args: Any) -> None:
        for callback in callbacks:
            self._asked(callback, hook, self._trainer, *args)

    def _asked(self, callback: Callback, method: str, *args: Any) -> Any:
        with _named(callback, method):
            return getattr(callback, method)(*args)

    def _tell_exception(self, error: BaseException) -> None:
        """Tell those that know of the fit; what they raise in turn is noted on the error, which is what matters."""
        for callback in [callback for callback in self.callbacks if callback in self._begun]:
            try:
                callback.on_exception(self._trainer, error)
            except Exception as another:
                error.add_note(f"And {type(callback).__name__}.on_exception raised {another!r}.")


@contextmanager
def _named(callback: Callback, hook: str) -> Iterator[None]:
    """Add the callback's name to an exception that leaves the block."""
    try:
        yield
    except KeyboardInterrupt:  # which came while it ran
        raise
    except BaseException as error:
        unnamed = isinstance(error, OSError) and error.filename is None
        place = callback.writes_to() if unnamed else None
        where = "" if place is None else f", which writes to {place}"
        error.add_note(f"Raised in the callback {type(callback).__name__}, by its {hook}{where}.")
        raise
