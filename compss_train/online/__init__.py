"""Training while simulations run: long-lived workers train on the samples that simulations send.

``DistributedTrainer.fit_online`` runs it; ``SampleSender`` sends samples from any other program.
"""

from compss_train.online.sender import SampleSender

__all__ = ["SampleSender"]
