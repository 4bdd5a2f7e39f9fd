"""Callbacks that act at one moment of a fit, or count its ends."""

from dataclasses import replace
from weakref import WeakSet

from compss_train import SerialEngine
from compss_train.callbacks import Callback


class CallAt(Callback):
    """Calls a function when a fit or a round starts or ends."""

    def __init__(self, hook, function, number=0):
        self.hook = hook
        self.function = function
        self.number = number

    def on_fit_start(self, trainer, total_samples):
        self._call("fit_start", 0, trainer)

    def on_round_start(self, trainer, number):
        self._call("round_start", number, trainer)

    def on_round_end(self, trainer, record):
        self._call("round_end", record["round"], trainer)

    def on_fit_end(self, trainer):
        self._call("fit_end", 0, trainer)

    def _call(self, hook, number, trainer):
        if (hook, number) == (self.hook, self.number):
            self.function(trainer)


class EndCounter(Callback):
    """Counts the ends of fits."""

    def __init__(self):
        self.ends = self.errors = 0

    def on_fit_end(self, trainer):
        self.ends += 1

    def on_exception(self, trainer, error):
        self.errors += 1


class StopAfter(Callback):
    """Stops a fit after a round."""

    def __init__(self, number: int, reason: str = "enough") -> None:
        self.number = number
        self.reason = reason

    def on_round_end(self, trainer, record):
        if record["round"] == self.number:
            trainer.stop(self.reason)


class InterruptAt(Callback):
    """Ctrl-C when a round is waited for."""

    def __init__(self, number: int) -> None:
        self.number = number

    def on_round_start(self, trainer, number):
        if number == self.number:
            raise KeyboardInterrupt


class LookaheadEngine(SerialEngine):
    """Takes rounds ahead as processes do, and knows what it holds; once ``stuck``, waiting gives
    nothing.
    """

    traits = replace(SerialEngine.traits, asynchronous=True)

    def __init__(self):
        super().__init__()
        self.held = WeakSet()
        self.stuck = False

    def publish(self, value):
        return self._hold(super().publish(value))

    def submit(self, *args, **options):
        made = super().submit(*args, **options)
        for ref in made if isinstance(made, list) else [made]:
            self._hold(ref)
        return made

    def commute(self, target, function, *args):
        return self._hold(super().commute(target, function, *args))

    def _hold(self, ref):
        self.held.add(ref)
        return ref

    def wait(self, refs, timeout):
        return not self.stuck and super().wait(refs, timeout)

    def arrived(self, refs):
        return [] if self.stuck else super().arrived(refs)


class CopyingEngine(SerialEngine):
    """A serial engine whose tasks are said to read all of what they take."""

    traits = replace(SerialEngine.traits, shared_memory=False)

    def __init__(self):
        super().__init__()
        self.submitted = []

    def submit(self, function, *args, **options):
        self.submitted.append(function.__name__)
        return super().submit(function, *args, **options)


class NoTasks(SerialEngine):
    """Fails when anything is submitted or published."""

    def publish(self, value):
        raise RuntimeError("something was published before the input was checked")

    submit = publish
