"""Values in Ray's object store, and the error of those that Ray has lost."""

import re
from dataclasses import dataclass
from typing import Any, TypeAlias

import ray
from ray.exceptions import ObjectStoreFullError, OutOfDiskError, OutOfMemoryError, RayError

from compss_train.engines import calls
from compss_train.engines.codec import SerializedValue
from compss_train.engines.ray import agent
from compss_train.exceptions import WorkerLostError

Lineage: TypeAlias = tuple[Any, ...]
"""The objects from which Ray makes a value again whose node is lost, as nested tuples."""


@dataclass(eq=False, slots=True)
class RayValue:
    """A value in Ray's object store.

    Ray remembers by which tasks it was made, to make it again. But Ray frees an object that was put
    when nobody has a reference to it, and could not put it again, so ``lineage`` has those
    references.
    """

    ref: Any
    node: str
    lineage: Lineage
    by_worker: bool = False
    """Whether a worker's task has made it, as its parameters and state."""

    @classmethod
    def put(cls, value: SerializedValue) -> "RayValue":
        """Store a value where the coordinator is."""
        ref = put(value)
        return cls(ref, ray.get_runtime_context().get_node_id(), (ref,))

    def load(self) -> Any:
        """Return the value; large arrays are read-only views of shared memory."""
        try:
            return agent.load(ray.get(self.ref))
        except RayError as error:
            raise lost_error("a value", error) from error

    @property
    def is_remakable(self) -> bool:
        """Whether Ray would make the value again, rather than keep it."""
        return self.ref is not None and self.lineage != (self.ref,)

    def keep(self) -> int:
        """Put the value here: from now on nothing that it was made from is needed.

        Returns its size in bytes. Raises ``WorkerLostError`` if it is lost or has no room here;
        then it stays as it was.
        """
        try:
            value: SerializedValue = ray.get(self.ref)
            self.ref = ray.put(value)
        except RayError as error:
            raise lost_error("a copy of a value", error) from error
        self.lineage = (self.ref,)
        return value.nbytes

    def discard(self) -> None:
        """Drop the references."""
        self.ref = None
        self.lineage = ()


def put(value: Any) -> Any:
    """Put a value into the store of this node; return Ray's reference to it.

    Raises ``WorkerLostError`` if it has no room there.
    """
    try:
        return ray.put(value)
    except RayError as error:
        raise lost_error("a value", error) from error


def lost_error(what: str, error: BaseException) -> WorkerLostError:
    """Return the error for a task or value that Ray has lost, or that has no room."""
    text = " ".join(str(error).split())
    if isinstance(error, (OutOfDiskError, ObjectStoreFullError)):
        task_address = re.search(r"\bip=([\w.:]+)", text)
        address = task_address[1] if task_address else ray.util.get_node_ip_address()
        return WorkerLostError(
            f"{what} has no room on node {address}: its object store is full, and so is the disk "
            "to which Ray spills objects, by default that of /tmp/ray, of which Ray uses 95%. "
            "Make room there, or start the node with ray start --object-spilling-directory=FOLDER "
            "or more --object-store-memory; fit(resume=) continues from a checkpoint"
        )
    if isinstance(error, OutOfMemoryError):
        text, _, _ = text.partition(" Object store memory usage")  # and pages more
        return WorkerLostError(
            f"{what} was ended by Ray's memory monitor, since its node ran out of memory: "
            f"{text}. Use smaller blocks or batches, or fewer workers a node (threads=)"
        )
    return WorkerLostError(
        f"Ray lost {what}, and cannot make it again, after {calls.MAX_RUNS} attempts or because "
        f"its inputs are lost, too: {text}. If memory ran out, use smaller blocks or batches. "
        "fit(resume=) continues from a checkpoint"
    )
