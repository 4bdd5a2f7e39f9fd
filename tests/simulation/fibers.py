"""Threads that run one at a time and change where they wait, so that a seed repeats what many of
them do.

``FiberEvents`` is the clock and the scheduler. ``FakeThreading`` stands in for the module
``threading``: what waits there lets others run, and when nobody can, the next event happens. A
fiber is a greenlet, as threads of the system take ten times as long to change; the code that runs
in it is that of the package.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from greenlet import getcurrent, greenlet

from tests.simulation.engine import CoordinatorKilled, Events, FaultPlan, ProcessDied

SURVIVAL = 86_400.0
"""Seconds within which all processes end after that of the coordinator: a poll of 0.1 s takes up to
30 s here.
"""

MOST_EVENTS = 200_000
"""Many more than any simulation has: something waits for ever."""

COORDINATOR = "coordinator"
"""The process of the coordinator."""


class FiberKilled(ProcessDied):
    """The process of a fiber has ended."""


class Fiber:
    """A greenlet, whether it may go on, and the process that it belongs to: that of the fiber that
    started it.
    """

    def __init__(self, process: object, name: str = "main") -> None:
        self.process = process
        self.name = name
        self.ready: Callable[[], bool] = lambda: True
        self.killed = self.finished = False
        self.greenlet = getcurrent()


class FiberEvents(Events):
    """Events, and fibers that run until they wait."""

    concurrent: ClassVar[bool] = True
    patient: ClassVar[bool] = True
    """Whether threads that look for changes now and then may sleep until something happens."""

    def __init__(self, seed: int, plan: FaultPlan) -> None:
        super().__init__(seed)
        self._plan = plan
        self.current = self._main = Fiber(COORDINATOR)
        self.fibers: list[Fiber] = []
        self.errors: list[Exception] = []
        """What threads of processes that live on have ended with."""
        self.at_end: list[Callable[[object], None]] = []
        """What happens to other things of a process when it is killed."""
        self.changes = 0
        """How often something has happened that a thread that only looks now and then could see."""

    def run(self, action: Callable[[], None]) -> None:
        """Start a process that does this."""
        self.start(action, process=object())

    def start(
        self, action: Callable[[], None], process: object = None, name: str = "task"
    ) -> Fiber:
        """Start a fiber in this process or another one."""
        fiber = Fiber(process or self.current.process, name)
        self.fibers.append(fiber)
        fiber.greenlet = greenlet(lambda *_: self._live(fiber, action), parent=self._main.greenlet)
        return fiber

    def _live(self, fiber: Fiber, action: Callable[[], None]) -> None:
        torch.set_grad_enabled(True)
        try:
            if not fiber.killed:
                action()
        except (FiberKilled, CoordinatorKilled, SystemExit):  # which ends a thread without a word
            pass
        except Exception as error:
            if not fiber.killed:
                self.errors.append(error)
        finally:
            fiber.finished = True
            self.fibers.remove(fiber)
            self.current = self._main if self._main.ready() else self._next()
            fiber.greenlet.parent = self.current.greenlet  # which goes on as this one ends

    def kill(self, process: object) -> None:
        """End all fibers of a process: they raise where they wait."""
        for fiber in list(self.fibers):
            if fiber.process is process:
                fiber.killed = True
                fiber.ready = lambda: True
        for action in self.at_end:
            action(process)

    def end_process(self, code: int = 1) -> None:
        """End the process that calls this."""
        self.kill(self.current.process)
        self._check_alive()

    def kill_coordinator(self) -> None:
        """End the coordinator's process; its main thread raises ``CoordinatorKilled`` wherever it
        waits.
        """
        self._plan.killed = self._main.killed = True
        self._main.ready = lambda: True
        self.kill(COORDINATOR)

    def outlive_coordinator(self) -> None:
        """Let the other processes go on until all have ended; raise ``RuntimeError`` if one of them
        does not.
        """
        self.kill(COORDINATOR)
        self._main.killed = False
        until = self.clock() + SURVIVAL
        while self.fibers:
            if self.clock() > until or not self.step():
                waiting = sorted({fiber.name for fiber in self.fibers})
                raise RuntimeError(
                    f"{SURVIVAL} s after the end of the coordinator there are {waiting}"
                )

    def kill_all(self) -> None:
        """End all fibers; that of the coordinator's main thread goes on as another process."""
        self._main.killed = False
        for process in {fiber.process for fiber in self.fibers}:
            self.kill(process)
        while self.fibers:
            self.current.ready = lambda: True
            self._switch(self.fibers[0])

    def next(self) -> float:
        """Return the time of the next event, which is now where a fiber may go on."""
        return self.clock() if self._waiting() else super().next()

    def step(self) -> bool:
        """Let a fiber go on, or the next event happen."""
        if not self._waiting():
            return self._happen()
        self.current.ready = lambda: True
        self._switch(self._next())
        return True

    def _happen(self) -> bool:
        if self.happened > MOST_EVENTS:
            raise RuntimeError(f"{MOST_EVENTS} events have happened, and a thread still waits")
        for fault in self._plan.at("moment"):
            if fault.kind == "kill" and not self._plan.killed:
                self.kill_coordinator()
            elif fault.kind == "jump":
                self.jump(fault.seconds)
            elif fault.kind == "back":
                self.set_back(fault.seconds)
        self._check_alive()
        return super().step()

    def wait(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        """Let others run until the condition holds, or the time is over; return whether it
        holds.
        """
        over = [False]
        if timeout is not None and not condition():
            self.after(max(0.0, timeout), lambda: over.__setitem__(0, True))
        own = self.current
        while not (condition() or over[0]):
            own.ready = lambda: own.killed or condition() or over[0]
            if others := self._waiting():
                self._switch(self.draw.choice(others))
            elif not self._happen():
                raise RuntimeError("nothing is left to happen, and a thread waits")
            self._check_alive()
        own.ready = lambda: True
        return condition()

    def _waiting(self) -> list[Fiber]:
        """Return the other fibers that may go on."""
        fibers = [*self.fibers, self._main]
        return [fiber for fiber in fibers if fiber is not self.current and fiber.ready()]

    def _next(self) -> Fiber:
        others = self._waiting()
        return self.draw.choice(others) if others else self._main

    def _switch(self, fiber: Fiber) -> None:
        self.current = fiber
        grad = torch.is_grad_enabled()  # of a thread
        fiber.greenlet.switch()
        torch.set_grad_enabled(grad)
        self._check_alive()

    def _check_alive(self) -> None:
        if self.current.killed:
            raise CoordinatorKilled if self.current is self._main else FiberKilled


class FakeThreading:
    """The module ``threading``, for fibers."""

    def __init__(self, events: FiberEvents) -> None:
        self._events = events
        self._threads: dict[Fiber, FakeThread] = {}
        self._main = threading.main_thread()

    def Thread(  # noqa: N802
        self, target: Callable[..., object], args: Any = (), name: str = "", **_: Any
    ) -> FakeThread:
        return FakeThread(self._events, self._threads, lambda: target(*args), name)

    def Event(self) -> FakeEvent:  # noqa: N802
        return FakeEvent(self._events)

    def Lock(self) -> FakeLock:  # noqa: N802
        return FakeLock(self._events)

    RLock = Lock
    local = SimpleNamespace  # only the coordinator's fiber has any

    def Condition(self, lock: FakeLock | None = None) -> FakeCondition:  # noqa: N802
        return FakeCondition(self._events, lock or FakeLock(self._events))

    def current_thread(self) -> Any:
        return self._threads.get(self._events.current, self._main)

    def main_thread(self) -> Any:
        return self._main

    def get_ident(self) -> int:
        return id(self._events.current)


class FakeThread:
    def __init__(
        self,
        events: FiberEvents,
        threads: dict[Fiber, FakeThread],
        target: Callable[[], object],
        name: str,
    ) -> None:
        self._events = events
        self._threads = threads
        self._target = target
        self._name = name
        self._fiber: Fiber | None = None

    def start(self) -> None:
        self._fiber = self._events.start(self._target, name=self._name)
        self._threads[self._fiber] = self

    def join(self, timeout: float | None = None) -> None:
        if self._fiber is not None and not self._fiber.killed:
            self._events.wait(lambda: not self.is_alive(), timeout)

    def is_alive(self) -> bool:
        return self._fiber is not None and not self._fiber.finished


class FakeEvent:
    def __init__(self, events: FiberEvents) -> None:
        self._events = events
        self._set = False

    def set(self) -> None:
        self._set = True
        self._events.changes += 1

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        return self._events.wait(self.is_set, timeout)


class FakeLock:
    """A lock that its fiber may acquire again."""

    def __init__(self, events: FiberEvents) -> None:
        self._events = events
        self._owner: Fiber | None = None
        self.depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        own = self._events.current
        seconds = 0.0 if not blocking else None if timeout < 0 else timeout
        if not self._events.wait(
            lambda: self._owner in (None, own) or self._owner.finished, seconds
        ):
            return False
        self.depth = self.depth + 1 if self._owner is own else 1
        self._owner = own
        return True

    def release(self) -> None:
        self.depth -= 1
        if not self.depth:
            self._owner = None

    def give_up(self) -> int:
        """Release it whole; return how often it was acquired."""
        depth = self.depth
        self.depth = 0
        self._owner = None
        return depth

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class FakeCondition:
    def __init__(self, events: FiberEvents, lock: FakeLock) -> None:
        self._events = events
        self._lock = lock
        self._notified = 0
        self.acquire = lock.acquire
        self.release = lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        depth = self._lock.give_up()
        before = self._notified
        try:
            return self._events.wait(lambda: self._notified > before, timeout)
        finally:
            self._lock.acquire()
            self._lock.depth = depth

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        until = None if timeout is None else self._events.clock() + timeout
        while not predicate():
            if until is not None and self._events.clock() >= until:
                return False
            self.wait(None if until is None else until - self._events.clock())
        return True

    def notify(self, n: int = 1) -> None:
        self._notified += 1

    notify_all = notify
