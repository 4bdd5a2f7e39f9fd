"""The serial engine: runs each task when it is submitted. For debugging, and the reference."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from compss_train.engines import calls, liveness
from compss_train.engines.base import Engine, Ref, Traits, map_refs
from compss_train.engines.nodes import ONE_CPU, Resources
from compss_train.exceptions import EngineClosedError, TaskCancelledError
from compss_train.model.devices import IN_PROCESS


@dataclass(eq=False, slots=True)
class _SerialRef(Ref):
    value: Any


class SerialEngine(Engine):
    """Run a task when it is submitted; exceptions are unchanged, and debuggers stop in the task.

    In a program with several threads, one task at a time runs, whatever engine it belongs to:
    random numbers and the number of threads are those of the whole process. A task that submits
    others runs them inside it. What other threads of the program draw or seed meanwhile still
    counts: make networks before you start them.
    """

    name: ClassVar[str] = "serial"
    traits: ClassVar[Traits] = Traits(
        asynchronous=False, shared_memory=True, task_seconds=0.0, object_bytes=0
    )

    def __init__(self) -> None:
        super().__init__()
        self._open = True
        self._samples = 0

    def publish(self, value: object) -> Ref:
        """Keep the value itself."""
        self._check_open()
        return self._made(_SerialRef(value))

    def _submit(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        returns: int,
        resources: Resources,
        priority: bool,
        place: int | None = None,
    ) -> Sequence[Ref]:
        """Run the task immediately."""
        values = map_refs(args, lambda ref: _serial(ref).value)
        with IN_PROCESS, calls.intra_op_threads(resources.cpus), liveness.reporting_to(self._count):
            try:
                return [
                    self._made(_SerialRef(result))
                    for result in calls.results_of(function, values, returns)
                ]
            except SystemExit as error:  # else the program would end silently
                raise calls.exited(error) from error

    def commute(self, target: Ref, function: Callable[..., Any], *args: Any) -> Ref:
        """Update immediately, in the order of submission."""
        self._check_open()
        [updated] = self._submit(function, (target, *args), 1, ONE_CPU, True)
        _serial(target).value = _serial(updated).value
        return self._made(_SerialRef(_serial(target).value))

    def fetch(self, refs: Sequence[Ref], *, small: bool = False) -> list[Any]:
        """Return the values, which are all available."""
        self._check_open()
        return [_serial(ref).value for ref in refs]

    def peek(self, ref: Ref, timeout: float = 0.0) -> Any:
        """Return the value."""
        self._check_open()
        return _serial(ref).value

    def arrived(self, refs: Sequence[Ref]) -> list[Ref]:
        """Return all references."""
        self._check_open()
        return list(refs)

    def free(self, refs: Sequence[Ref]) -> None:
        """Drop the values."""
        for ref in refs:
            if isinstance(ref, _SerialRef) and hasattr(ref, "value"):
                del ref.value

    def slots(self, resources: Resources) -> int:
        """Return 1."""
        return 1

    def _reserve(self, tasks: Sequence[Resources]) -> None:
        """Raise ``ValueError``: tasks run one at a time, while their coordinator waits."""
        raise ValueError(
            f"{len(tasks)} tasks are to run at the same time, but the serial engine runs one at "
            "a time while the coordinator waits; use engine='local'"
        )

    def trained_samples(self) -> int:
        """Return what tasks have reported."""
        return self._samples

    def _count(self, samples: int, doing: str | None) -> None:
        self._samples += samples

    def shutdown(self, *, kill: bool = False) -> None:
        """Refuse further calls."""
        self._open = False

    def _check_open(self) -> None:
        if not self._open:
            raise EngineClosedError("this serial engine was shut down; make a new one")


def _serial(ref: Ref) -> _SerialRef:
    if not isinstance(ref, _SerialRef):
        raise TypeError(f"{ref!r} is not a reference of the serial engine")
    if not hasattr(ref, "value"):
        raise TaskCancelledError
    return ref
