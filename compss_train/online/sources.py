"""All that sends samples to a fit: the simulations that it runs, and other programs."""

from typing import Any

from compss_train._utils.validation import warn_user
from compss_train.exceptions import SimulationError
from compss_train.net import Client, Header
from compss_train.online.external_senders import ExternalSenders
from compss_train.online.simulation_runs import SimulationRuns
from compss_train.online.source_failures import SourceFailure


class Sources:
    """The simulations of a fit, and other programs that send samples to it."""

    def __init__(self, runs: SimulationRuns[Any], senders: ExternalSenders) -> None:
        self.runs = runs
        self.senders = senders

    def handle(self, client: Client, header: Header | None) -> None:
        """Process a message of a source; raise ``MessageError`` if it is malformed."""
        if self.runs.serves(client.greeting):
            self.runs.handle(client, header)
        else:
            self.senders.handle(client, header)

    def stop(self, *, goes_on: bool) -> None:
        """Notify all that training has ended; some wait if the study ``goes_on``."""
        self.runs.stop(goes_on=goes_on)
        self.senders.stop(goes_on=goes_on)

    @property
    def all_ended(self) -> bool:
        """Whether no more samples will come."""
        return self.runs.all_ended and self.senders.all_ended

    def counts(self) -> dict[str, int]:
        """Return the numbers of running, completed and failed sources."""
        senders = self.senders.counts()
        return {name: number + senders[name] for name, number in self.runs.counts().items()}

    @property
    def awaited(self) -> int | None:
        """How many sources are yet to run, or to run again; ``None`` if that is not known."""
        awaited = self.runs.awaited
        return None if awaited is None else awaited + self.senders.missing

    def named(self, stream: int) -> str:
        """Return what messages call the source of a stream."""
        return self.senders.named(stream) or self.runs.named(stream)

    def sent_nothing(self) -> SimulationError | None:
        """Return the error of sources of which some are complete, and none has sent a sample."""
        complete = self.counts()["done"]
        if not complete or self.runs.any_samples or self.senders.any_samples:
            return None
        return SimulationError(f"{complete} simulations have ended, and none has sent a sample")

    def none_complete(self) -> SimulationError | None:
        """Return the error of sources of which all were given up."""
        counts = self.counts()
        if counts["done"] or not counts["failed"] or not self.all_ended:
            return None
        reason = f"no simulation is complete, and {counts['failed']} were given up"
        return self._first_failure.with_reason(reason)

    def warn_of_given_up(self) -> None:
        """Warn of sources that were given up, by name, and tell why the first one failed."""
        counts = self.counts()
        given_up = counts["failed"]
        if not given_up:
            return
        names = [*self.runs.inputs.lost]
        if given_up > len(names):
            names.append(f"{given_up - len(names)} more")
        failure = self._first_failure
        warn_user(
            f"{given_up} of {given_up + counts['done']} simulations were given up, and samples of "
            f"them are missing: {', '.join(names)}; the first failure: {failure.summary}"
            f"{failure.details}"
        )

    @property
    def _first_failure(self) -> SourceFailure:
        earlier = SourceFailure("it was before this program")
        return self.runs.failure or self.senders.failure or earlier
