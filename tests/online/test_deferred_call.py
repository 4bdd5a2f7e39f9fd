"""Deferred calls: a moment after they were asked for, as long as there is the object."""

import gc
import threading
import weakref

from compss_train.online.deferred_call import DeferredCall
from tests.helpers.waiting import LIMIT, wait_until


class Counter:
    """Counts its deferred calls."""

    def __init__(self, seconds):
        self.calls = 0
        self.called = threading.Event()
        self.deferred = DeferredCall(self.call, seconds, name="counting")

    def call(self):
        self.deferred.withdraw()
        self.calls += 1
        self.called.set()


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "counting"]


def test_a_call_follows_each_time_it_is_asked_for():
    counter = Counter(0.001)
    for calls in range(1, 4):
        counter.called.clear()
        counter.deferred.ask()
        assert counter.called.wait(LIMIT)
        assert counter.calls == calls
    counter.deferred.close()
    counter.deferred.close()
    counter.deferred.ask()
    assert (counter.calls, threads()) == (3, [])


def test_what_was_withdrawn_or_comes_too_late_is_not_called():
    counter = Counter(1000)
    counter.deferred.ask()
    counter.deferred.close()
    assert (counter.calls, threads()) == (0, [])


class Slow(Counter):
    """Its call withdraws what was asked for when it is told to, also while it is closed."""

    def __init__(self):
        self.began = threading.Event()
        self.told = threading.Event()
        super().__init__(0.0)

    def call(self):
        self.began.set()
        assert self.told.wait(LIMIT)
        super().call()


def test_it_is_closed_while_a_call_withdraws_what_was_asked_for(monkeypatch):
    slow = Slow()
    slow.deferred.ask()
    assert slow.began.wait(LIMIT)
    [thread] = threads()
    join = thread.join

    def tell_and_join():
        slow.told.set()
        join(LIMIT)

    monkeypatch.setattr(thread, "join", tell_and_join)
    slow.deferred.close()
    assert (slow.calls, threads()) == (1, [])


def test_the_thread_ends_with_the_object():
    counter = Counter(0.001)
    counter.deferred.ask()
    assert counter.called.wait(LIMIT)
    gone = weakref.ref(counter)
    del counter

    def has_ended():
        gc.collect()
        return gone() is None and not threads()

    wait_until(has_ended)
