"""Engines, which run tasks: ``serial``, ``local``, ``compss`` and ``ray``.

``serial`` runs them in this process, ``local`` on worker processes, ``compss`` under COMPSs,
``ray`` on a cluster of Ray.

The names in ``__init__.pyi`` are imported on first use: writing COMPSs's configuration needs no
torch.
"""

from compss_train._utils.imports import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
