"""Selection of an engine by name, including ``auto``."""

import os

from compss_train.engines.base import Engine
from compss_train.engines.compss import runtime
from compss_train.engines.compss.engine import CompssEngine
from compss_train.engines.local import LocalEngine
from compss_train.engines.ray import RayEngine, cluster
from compss_train.engines.serial import SerialEngine
from compss_train.exceptions import ScriptLoadingError

ENGINES: dict[str, type[Engine]] = {
    engine.name: engine for engine in (SerialEngine, LocalEngine, CompssEngine, RayEngine)
}
ENGINE_VARIABLE = "COMPSS_TRAIN_ENGINE"
"""Environment variable with the name of the engine that ``auto`` stands for."""


def engine_class(name: str) -> type[Engine]:
    """Return the class of the engine with this name.

    ``auto`` is the engine named by the environment variable ``COMPSS_TRAIN_ENGINE``; by default
    ``compss`` in an application of COMPSs, ``ray`` where ``RAY_ADDRESS`` is set, as Ray's job
    system does, ``local`` elsewhere. In a program started by plain ``python``, ``compss`` is the
    serial engine: PyCOMPSs runs tasks immediately there.

    Raises ``ValueError`` for an unknown name, ``ScriptLoadingError`` for ``compss`` while PyCOMPSs
    only imports the script, and ``ImportError`` for ``compss`` without PyCOMPSs or ``ray`` without
    Ray.
    """
    source = f"engine={name!r}"
    if name == "auto":
        name = os.environ.get(ENGINE_VARIABLE, "auto")
        source = f"{ENGINE_VARIABLE}={name}"
        if name in ("", "auto"):
            elsewhere = RayEngine.name if os.environ.get(cluster.ADDRESS) else LocalEngine.name
            name = CompssEngine.name if runtime.under_compss() else elsewhere
    if not isinstance(name, str) or name not in ENGINES:
        raise ValueError(
            f"{source} is not an engine; choose one of auto, {', '.join(ENGINES)}, "
            "or give an Engine"
        )
    if name == CompssEngine.name and runtime.is_loading():
        raise ScriptLoadingError(
            "PyCOMPSs imports a script before it runs it, and nothing can be trained during the "
            "import. The script "
            'has caught this error: move its code below  if __name__ == "__main__":'
        )
    if name == CompssEngine.name and not runtime.under_compss():
        runtime.import_pycompss()
        return SerialEngine
    if name == RayEngine.name:
        cluster.import_ray()
    return ENGINES[name]
