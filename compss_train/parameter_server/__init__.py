"""Parameter servers: stores of parameters by key that many workers push to and pull from.

``serve``, ``serve_apart`` and ``connect``, for other processes and nodes, need ZeroMQ: the extra
``online``.
"""

from compss_train._utils.imports import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
