"""The local engine that tests share."""

from compss_train import LocalEngine


class Lasting(LocalEngine):
    """An engine that fits which fail cannot end, so that tests share it: only counts how often they want to."""

    ends = 0

    def shutdown(self, *, kill: bool = False) -> None:
        assert kill, "nobody but a fit that fails is to end it"
        self.ends += 1

    def end(self) -> None:
        super().shutdown(kill=True)
