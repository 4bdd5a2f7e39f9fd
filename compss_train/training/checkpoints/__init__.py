"""Checkpoints: all that a fit needs to go on where it was, in a folder a round, complete or not there at all.

::

    folder/
        round-000012/
            arrays.safetensors     parameters, optimizer and random states: every array
            state.json             everything else, and the checksums of both
"""

from compss_train.training.checkpoints.files import read, write
from compss_train.training.checkpoints.folder import checkpoints, newest
from compss_train.training.checkpoints.snapshot import Snapshot

__all__ = ["Snapshot", "checkpoints", "newest", "read", "write"]
