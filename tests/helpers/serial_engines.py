"""Serial engines that look ahead, copy blocks, or refuse tasks."""

from dataclasses import replace

from compss_train import SerialEngine


class LookaheadEngine(SerialEngine):
    """Takes rounds ahead as processes do, and knows what it holds; once ``stuck``, waiting gives nothing."""

    traits = replace(SerialEngine.traits, asynchronous=True)

    def __init__(self):
        super().__init__()
        self.held = set()
        self.stuck = False

    def publish(self, value):
        return self._hold(super().publish(value))

    def submit(self, *args, **options):
        made = super().submit(*args, **options)
        for ref in made if isinstance(made, list) else [made]:
            self._hold(ref)
        return made

    def commute(self, target, function, *args):
        held = set(self.held)
        made = super().commute(target, function, *args)
        self.held = held
        return self._hold(made)

    def _hold(self, ref):
        self.held.add(ref)
        return ref

    def wait(self, refs, timeout):
        return not self.stuck and super().wait(refs, timeout)

    def delete(self, refs):
        assert self.held.issuperset(refs), "deleted before"
        super().delete(refs)
        self.held.difference_update(refs)


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
