"""What makes the calls of clients count once, over broken connections and clients that are run again."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TypeAlias

Refusal: TypeAlias = "tuple[str, str]"
"""The kind of an error, and its message."""
_REFUSALS = 100  # that are kept of a client and key; who has more of them gets nothing right


@dataclass
class Counted:
    """Of a client, the calls that change one key: the n-th of them counts once, however often it comes."""

    next: int = 0
    """How many have come."""
    _waiting: dict[int, int] = field(default_factory=dict)
    _refused: dict[int, Refusal] = field(default_factory=dict)

    def wait(self, count: int, number: int) -> None:
        """Note that a call is still to be executed, and the number to answer it under."""
        self._waiting[count] = number

    def is_waiting(self, count: int) -> bool:
        """Tell whether a call is still to be executed."""
        return count in self._waiting

    def executed(self, count: int) -> int:
        """Return the number to answer under: that which the call came with last."""
        return self._waiting.pop(count)

    def refuse(self, count: int, refusal: Refusal) -> None:
        """Note what is to be answered each time that the call comes."""
        self._refused[count] = refusal
        if len(self._refused) > _REFUSALS:
            del self._refused[min(self._refused)]

    def refusal(self, count: int) -> Refusal | None:
        """Return what was said against a call."""
        return self._refused.get(count)


@dataclass
class Caller:
    """What is known of a client."""

    keys: defaultdict[str, Counted] = field(default_factory=lambda: defaultdict(Counted))
    reading: set[int] = field(default_factory=set)
    """The numbers of pulls that wait: one that comes again is answered once."""
