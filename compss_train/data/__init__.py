"""Data: blocked tensors, files, data sets, random orders, and partitions among workers.

The names in ``__init__.pyi`` are imported on first use: what senders check of samples needs no
torch.
"""

from compss_train._utils.imports import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
