"""What a parameter server keeps of its clients, by which it executes no call of them twice."""

import math
from dataclasses import dataclass, field
from typing import TypeAlias

from compss_train.net import Client
from compss_train.parameter_server.interface import Key

CallError: TypeAlias = tuple[str, str]
"""The name of an exception's class, and its message."""


@dataclass
class KeyCalls:
    """A client's calls that change one key.

    Its n-th call is executed once, however often it is received.
    """

    next: int = 0
    """The number of calls received so far."""
    waiting: dict[int, int] = field(default_factory=dict)
    """By call that is to be executed, the number of the request that brought it last."""
    errors: dict[int, CallError] = field(default_factory=dict)
    """The errors that answer calls, each time that they are received."""


@dataclass(eq=False)
class ClientRecords:
    """What is known of a client, over all its connections."""

    name: str
    generation: int
    continued: bool = False
    """Whether its earlier calls were forgotten, all answered: it may begin with any count."""
    timeout: float | None = None
    """Seconds that it waits for an answer; ``None`` for a client that is never forgotten.

    That is one with a name.
    """
    connections: list[Client] = field(default_factory=list)
    forget_at: float = math.inf
    """When it will be forgotten, unless it connects again."""
    keys: dict[Key, KeyCalls] = field(default_factory=dict)
    """Its calls by the key that they change."""
