"""Training while simulations run: long-lived workers train on the samples that simulations send.

``DistributedTrainer.fit_online`` runs it, ``Simulations`` says what sends samples; ``SampleSender`` sends them from
any other program. All but ``Simulations`` needs ZeroMQ.
"""

from typing import TYPE_CHECKING

from compss_train._utils.imports import lazy_names

__all__ = ["SampleSender"]

if TYPE_CHECKING:
    from compss_train.online.sender import SampleSender
else:
    __getattr__, __dir__ = lazy_names(__name__, {"sender": __all__})
