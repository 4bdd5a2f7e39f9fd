"""Training while simulations run: long-lived workers train on the samples that simulations send.

``DistributedTrainer.fit_online`` runs it, ``Simulations`` describes what sends samples, and
``SampleSender`` sends them from any other program. All but ``Simulations`` need ZeroMQ.
"""

from compss_train._utils.imports import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
