"""Faults of a simulation: each one happens at a certain occasion, such as the start of the 7th
task.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NoReturn


class CoordinatorKilled(BaseException):
    """The coordinator's process has been killed; whatever it does afterwards to clean up raises
    this as well.
    """


class ProcessDied(BaseException):
    """The process of a task has died while it ran; a simulated network raises this, for example."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong, once.

    The engine knows these: at the start of a ``"task"``, ``"die"`` (its process ends before it has
    run), ``"mute"`` (its process ends after it has run, before it has answered), ``"vanish"`` (its
    process ends, and with it the values that it had made), ``"slow"`` and ``"late"`` (it takes
    ``seconds`` more, and its process with it or not), ``"twice"`` (it runs in another process,
    too); at an ``"event"``, ``"kill"`` (the coordinator is killed), ``"jump"`` (the clock is put
    forward by ``seconds``) and ``"back"`` (the time of the day is set back by them). Others may
    define more.
    """

    kind: str
    place: str
    """The kind of occasion."""
    at: int
    """The number of the occasion, counted from 0 in this place over the whole simulation."""
    seconds: float = 0.0


class FaultPlan:
    """Hands out faults as their occasions come; counts occasions over all engines of a
    simulation.
    """

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self.occasions: Counter[str] = Counter()
        self.fired: list[Fault] = []
        """The faults that have happened, in order."""
        self.killed = False
        """Whether the coordinator has been killed; from then on everything that it calls raises."""
        self._due: dict[tuple[str, int], list[Fault]] = {}
        for fault in faults:
            self._due.setdefault((fault.place, fault.at), []).append(fault)

    def kill(self) -> NoReturn:
        """Kill the coordinator: raise ``CoordinatorKilled``, now and wherever ``check_alive`` is
        called.
        """
        self.killed = True
        raise CoordinatorKilled("the coordinator was killed")

    def check_alive(self) -> None:
        """Raise ``CoordinatorKilled`` if the coordinator has been killed."""
        if self.killed:
            self.kill()

    def at(self, place: str) -> Iterator[Fault]:
        """Count an occasion, and iterate over its faults."""
        number = self.occasions[place]
        self.occasions[place] += 1
        for fault in self._due.pop((place, number), ()):
            self.fired.append(fault)
            yield fault
