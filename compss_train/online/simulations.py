"""``Simulations``: where the samples of an online fit come from."""

import re
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass, field
from typing import Any

from compss_train._utils.validation import check_count, check_seconds
from compss_train.training.build_arguments import check_picklable

Pairing = Callable[[Any, Any], Any]
"""Makes (x, y) of two batches of time steps, the earlier and the later of each pair."""


@dataclass(frozen=True)
class Simulations:
    """The programs that send samples while ``fit_online`` trains: tasks of the fit, senders outside it, or both.

    Parameters
    ----------
    simulate:
        A generator function of one input that yields samples: (x, y), or (step, x, y) where the buffer pairs time
        steps, or x alone for autoencoders. Runs in another process, and may be run again. ``None`` if only
        ``senders`` send.
    inputs:
        Its arguments, one a simulation: a list, or an iterator, which may be endless. The next one is requested in
        the coordinator's process when a simulation has ended; the fit waits meanwhile.
    count:
        Number of simulations that run at the same time; 1 by default.
    retries:
        Maximum number of retries of a simulation that raised, hung, or whose process died; 2 by default. Samples
        that have arrived are not sent again. After that it is skipped, with a warning.
    timeout:
        Maximum seconds between two samples of a simulation; ``None`` (default) for no limit.
    pairing:
        For a SimPairedReservoir: makes (x, y) of two batches of ``TimeStep``, the earlier and the later ones.
    senders, address, token:
        Number of other programs that will send samples with ``SampleSender``, to this address
        (``tcp://HOST:PORT``) and with this token. None by default.

    Raises ``ValueError`` and ``TypeError`` for other values and for incompatible combinations.
    """

    simulate: Callable[[Any], Iterable[Any]] | None = None
    inputs: Iterable[Any] = ()
    count: int = 1
    retries: int = 2
    timeout: float | None = None
    pairing: Pairing | None = None
    senders: int = 0
    address: str | None = None
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_count("count", self.count)
        for name in ("retries", "senders"):
            check_count(name, getattr(self, name), least=0)
        if self.timeout is not None:
            check_seconds("timeout", self.timeout)
        self._check_simulate()
        self._check_senders()
        check_picklable(simulate=self.simulate, pairing=self.pairing)

    @property
    def places(self) -> int:
        """How many tasks run at the same time."""
        return 0 if self.simulate is None else self.count

    @property
    def host(self) -> str | None:
        """The host of the address for senders, or ``None``."""
        return None if self.address is None else host_and_port(self.address)[0]

    def _check_simulate(self) -> None:
        if self.simulate is not None and not callable(self.simulate):
            raise TypeError(f"simulate={self.simulate!r}: give a function of an input that yields samples (x, y)")
        if self.simulate is None and not self.senders:
            raise ValueError("simulate=None with senders=0: give simulate= or senders=, the sources of samples")
        if not isinstance(self.inputs, Iterable):
            raise TypeError(f"inputs={self.inputs!r}: give a list or an iterator, one item per simulation")
        is_empty = isinstance(self.inputs, Sized) and not len(self.inputs)
        if self.simulate is None and not is_empty:
            raise ValueError("inputs= without simulate=: give the function that is called with each input")
        if self.simulate is not None and is_empty:
            raise ValueError("inputs= is empty: give at least one input of simulate=")

    def _check_senders(self) -> None:
        if self.senders and self.address is None:
            raise ValueError(f"senders={self.senders} need an address= to send to, such as tcp://127.0.0.1:5555")
        if self.address is not None:
            host_and_port(self.address)
            if not isinstance(self.token, str) or not self.token:
                raise ValueError(f"token={self.token!r}: address= needs a non-empty string that senders present")


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of ``"tcp://host:port"``; raise ``ValueError`` for anything else."""
    match = re.fullmatch(r"tcp://([^:/*]+):(\d+)", address) if isinstance(address, str) else None
    if match is None or int(match[2]) >= 2**16:
        raise ValueError(f"address={address!r}: give tcp://HOST:PORT")
    return match[1], int(match[2])
