"""Training while simulations run: simulations send samples to long-lived workers, which train on what they hold.

``DistributedTrainer.fit_online`` runs it; ``SampleSender`` lets any other program send samples.
"""

from compss_train.online.sender import SampleSender

__all__ = ["SampleSender"]
