"""The COMPSs engine: tasks of PyCOMPSs, run on the nodes of its runtime. Only this package imports pycompss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compss_train._utils.imports import lazy_names

__all__ = ["CompssEngine", "import_pycompss", "is_loading", "under_compss"]

if TYPE_CHECKING:
    from compss_train.engines.compss.context import import_pycompss, is_loading, under_compss
    from compss_train.engines.compss.engine import CompssEngine
else:
    __getattr__, __dir__ = lazy_names(
        __name__, {"context": ("import_pycompss", "is_loading", "under_compss"), "engine": ("CompssEngine",)}
    )
