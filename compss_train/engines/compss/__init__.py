"""The COMPSs engine: tasks of PyCOMPSs, run wherever its runtime has nodes. Only this package imports pycompss."""

from compss_train.engines.compss.context import is_loading, under_compss
from compss_train.engines.compss.engine import CompssEngine

__all__ = ["CompssEngine", "is_loading", "under_compss"]
