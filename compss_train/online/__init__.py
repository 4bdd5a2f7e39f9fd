"""Training while simulations run: long-lived workers train on the samples that simulations send.

``DistributedTrainer.fit_online`` runs it, ``Simulations`` says what sends samples; ``SampleSender`` sends them from
any other program. All but ``Simulations`` needs ZeroMQ.
"""

from typing import TYPE_CHECKING

from compss_train._utils.imports import import_optional

__all__ = ["SampleSender"]

if TYPE_CHECKING:
    from compss_train.online.sender import SampleSender
else:

    def __getattr__(name: str) -> object:
        if name != "SampleSender":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import_optional("zmq", extra="online", needed_by=name, package="ZeroMQ")
        from compss_train.online.sender import SampleSender

        return SampleSender
