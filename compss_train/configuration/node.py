"""A worker of COMPSs as the two files are to declare it."""

from __future__ import annotations

from dataclasses import dataclass

from compss_train.configuration.ports import FIRST_PORT, LAST_PORT, PORTS


@dataclass(frozen=True)
class Node:
    """One worker of COMPSs: the host that it is started on by ssh, what it may use, and its first port."""

    name: str
    units: int
    gpus: int = 0
    first_port: int = FIRST_PORT

    def __post_init__(self) -> None:
        if not self.name or self.name != self.name.strip():
            raise ValueError(f"a node needs the name of a host, not {self.name!r}")
        if self.units < 1:
            raise ValueError(f"units={self.units} for {self.name}: give at least 1, most often its physical cores")
        if self.gpus < 0:
            raise ValueError(f"gpus={self.gpus} for {self.name}: give 0 or more")
        if not 1024 <= self.first_port <= LAST_PORT - PORTS:
            raise ValueError(
                f"{self.name} would listen on port {self.first_port}; ports must lie between 1024 and {LAST_PORT}: "
                "choose another first port, or fewer nodes"
            )

    @property
    def last_port(self) -> int:
        """The last of the ports that the worker may listen on."""
        return self.first_port + PORTS - 1
