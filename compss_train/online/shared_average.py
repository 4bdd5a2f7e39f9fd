"""``SharedAverage``: the average by steps that the workers of an online fit share."""

from typing import Any

from compss_train.model.parameters import Parameters
from compss_train.parameter_server import ParameterServer
from compss_train.worker.learner import Learner
from compss_train.worker.server_exchange import Exchange


class SharedAverage:
    """A worker's average by steps, which merges through the server as its parameters do.

    The worker adds its share of the change since its last merge, and continues from the result. It
    ``has_begun`` if there was one to continue; otherwise it begins with the worker's first step,
    and the first change is one from the parameters that the server began with.
    """

    def __init__(
        self,
        exchange: Exchange,
        server: ParameterServer,
        *,
        worker: int,
        share: float,
        has_begun: bool,
    ) -> None:
        self._exchange = exchange
        self._server = server
        self._worker = worker
        self._share = share
        self.has_begun = has_begun
        """Whether the worker has merged an average, or continues an earlier one."""
        self._base = exchange.pull(server)
        """The shared average from which the worker has continued last."""

    @property
    def start(self) -> Parameters | None:
        """What a new learner continues; ``None`` if its first step begins the average."""
        return self._base if self.has_begun else None

    def push(self, learner: Learner) -> None:
        """Add the change of a learner that has finished; it has none before its first step."""
        averaged = learner.averaged()
        if averaged:
            self._exchange.push_change(
                self._server, self._worker, self._base, averaged, share=self._share
            )
            self.has_begun = True

    def continue_from_shared(self, learner: Learner) -> None:
        """Let a learner whose average is merged continue from that of all workers."""
        self._base = self._exchange.pull(self._server)
        if self.has_begun:
            learner.continue_average(self._base)

    def unmerged(self, learner: Learner) -> dict[str, Any]:
        """Return the change of a learner that is not merged, for ``restore``."""
        return {"base": self._base, "averaged": learner.averaged()}

    def restore(self, learner: Learner, unmerged: dict[str, Any]) -> None:
        """Continue with a change that was not merged when the worker took part in the save."""
        self._base = unmerged["base"]
        if unmerged["averaged"]:
            learner.continue_average(unmerged["averaged"])
