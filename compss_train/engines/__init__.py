"""Engines: where tasks run. ``serial`` in this process, ``local`` on worker processes, ``compss`` under COMPSs.

Names are imported on first use: writing COMPSs's configuration needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compss_train._utils.imports import lazy_names

__all__ = [
    "ENGINES",
    "CompssEngine",
    "Engine",
    "LocalEngine",
    "Ref",
    "Resources",
    "SerialEngine",
    "Traits",
    "engine_class",
]

if TYPE_CHECKING:
    from compss_train.engines.base import Engine, Ref, Resources, Traits
    from compss_train.engines.compss.engine import CompssEngine
    from compss_train.engines.local.engine import LocalEngine
    from compss_train.engines.selection import ENGINES, engine_class
    from compss_train.engines.serial import SerialEngine
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "base": ("Engine", "Ref", "Resources", "Traits"),
            "compss.engine": ("CompssEngine",),
            "local.engine": ("LocalEngine",),
            "selection": ("ENGINES", "engine_class"),
            "serial": ("SerialEngine",),
        },
    )
