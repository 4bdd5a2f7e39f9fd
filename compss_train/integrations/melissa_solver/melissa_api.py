"""Melissa's functions for solvers in Python, which ``from melissa_api import *`` finds.

``PYTHONPATH=$(compss-train headers --python)`` lets a solver find this module. Fields go to the
``Solver`` that has started it.
"""

from typing import Any

from numpy.typing import ArrayLike

from compss_train.online import client

__all__ = ["melissa_finalize", "melissa_init", "melissa_send", "melissa_send_with_metadata"]


def melissa_init(field_name: str, local_vect_size: int, mpi_communicator: Any = None) -> None:
    """Declare a field of which this rank of a communicator of mpi4py has so many numbers."""
    client.init(field_name, local_vect_size, mpi_communicator)


def melissa_send(field_name: str, values: ArrayLike) -> None:
    """Send the values of this rank at the next time step."""
    client.send(field_name, values)


def melissa_send_with_metadata(field_name: str, values: ArrayLike, json: str) -> None:
    """Send them with a text, which ``sample`` gets as ``fields.metadata``."""
    client.send(field_name, values, json)


def melissa_finalize() -> None:
    """Say that all time steps were sent, before ``MPI.Finalize``."""
    client.finalize()
