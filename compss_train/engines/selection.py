"""Which engine a name stands for, and which one ``auto`` is."""

from __future__ import annotations

import os

from compss_train.engines.base import Engine
from compss_train.engines.compss import CompssEngine, is_loading, under_compss
from compss_train.engines.local import LocalEngine
from compss_train.engines.serial import SerialEngine
from compss_train.exceptions import ScriptLoadingError

ENGINES: dict[str, type[Engine]] = {engine.name: engine for engine in (SerialEngine, LocalEngine, CompssEngine)}
ENGINE_VARIABLE = "COMPSS_TRAIN_ENGINE"
"""Environment variable that says which engine ``auto`` is."""


def engine_class(name: str) -> type[Engine]:
    """Return the engine of that name.

    ``auto`` is the one that the environment variable names, else ``compss`` in an application of COMPSs, else
    ``local``.

    Raises ``ValueError`` for an unknown name, listing the known ones; ``ScriptLoadingError`` for that of COMPSs
    where PyCOMPSs is only importing the script.
    """
    source = f"engine={name!r}"
    if name == "auto":
        name = os.environ.get(ENGINE_VARIABLE, "auto")
        source = f"{ENGINE_VARIABLE}={name}"
        if name in ("", "auto"):
            name = CompssEngine.name if under_compss() else LocalEngine.name
    if name not in ENGINES:
        raise ValueError(f"{source} is no engine; choose one of auto, {', '.join(ENGINES)}, or give an Engine")
    if name == CompssEngine.name and is_loading():
        raise ScriptLoadingError(
            "PyCOMPSs imports a script before it runs it, and nothing can be trained then. Where this is told, the "
            'script has caught it: put what it does below  if __name__ == "__main__":'
        )
    return ENGINES[name]
