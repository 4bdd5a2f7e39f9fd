"""Named functions: looking one up, and saying what there is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import nn

from compss_train.nearest import nearest

Function = TypeVar("Function", bound=Callable[..., Any])


def resolve(kind: str, given: str | Function, known: Mapping[str, Function]) -> Function:
    """Return the function called ``given``, or ``given`` where it is one.

    A class of ``nn.Module`` (``torch.nn.MSELoss``, as dislib takes it) is instantiated without arguments.

    Raises ``ValueError`` for an unknown name, with the known ones and the nearest, ``TypeError`` for anything else.
    """
    if isinstance(given, str):
        if given not in known:
            hint = nearest(given, known)
            raise ValueError(f"unknown {kind} {given!r}; choose one of {', '.join(known)} or pass a callable{hint}")
        return known[given]
    if isinstance(given, type) and issubclass(given, nn.Module):
        try:
            return given()  # type: ignore[return-value]
        except TypeError as error:
            raise TypeError(f"{kind}={given.__name__} is a class that needs arguments; call it: {error}") from error
    if callable(given):
        return given
    raise TypeError(f"{kind}={given!r} is neither a name nor a callable; names are {', '.join(known)}")
