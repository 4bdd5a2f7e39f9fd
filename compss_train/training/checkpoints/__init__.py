"""Checkpoints: the complete state of a fit, in one folder for each checkpointed round.

::

    folder/
        round-000012/
            arrays.safetensors     parameters, optimizer and random states: every array
            state.json             everything else, and the checksums of both
"""
