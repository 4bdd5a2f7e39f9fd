"""Training while simulations run: long-lived workers train on the samples that simulations send.

``DistributedTrainer.fit_online`` runs it, ``Simulations`` says what sends samples; ``SampleSender`` sends them from
any other program. All but ``Simulations`` needs ZeroMQ.
"""

from compss_train._utils.imports import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
