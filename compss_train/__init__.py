"""compss_train: train any PyTorch model with many workers, on one machine or a COMPSs cluster.

Public names, which are listed in ``__init__.pyi``, and submodules are imported on first use: the
command ``compss-train`` needs no torch, and its doctor must run without it.
"""

from compss_train._utils.imports import lazy_names

_NOT_BY_STAR = {"DistributedClassifier", "DistributedRegressor", "SampleSender", "__version__"}
"""Names that need an extra, without which an import of everything has to work, and the version."""

__getattr__, __dir__, _names = lazy_names(__name__)
__all__ = sorted({*_names} - _NOT_BY_STAR)
