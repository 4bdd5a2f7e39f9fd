"""The local engine: tasks on worker processes of this machine, values in shared memory."""

from compss_train.engines.local.engine import LocalEngine

__all__ = ["LocalEngine"]
