"""Object stores and disks that are full: an error that says so, where nothing else has room."""

import numpy as np
import pytest
import ray
from ray.exceptions import ObjectStoreFullError, OutOfDiskError, RayTaskError

from compss_train import WorkerLostError
from compss_train.engines.ray import submitter
from compss_train.engines.ray.value import lost_error

LARGE = 200_000
"""Bytes that are put into the store, rather than sent in a message."""


def make(size):
    return np.ones(size, np.uint8)


def total(array):
    return int(array.sum())


@pytest.fixture
def full_store(shared_ray, monkeypatch):
    """Returns a function that fills the store of the coordinator's node."""

    def fill():
        def refuse(value):
            raise OutOfDiskError

        monkeypatch.setattr(ray, "put", refuse)

    return fill


@pytest.mark.parametrize("kind", [ObjectStoreFullError, OutOfDiskError])
def test_the_error_names_the_task_and_the_node_that_is_full(kind):
    failed = RayTaskError("ray::map_chunk()", "text", kind(), "ray::map_chunk()", 1, "10.0.0.7")
    failed.traceback_str = f"ray::map_chunk() (pid=1, ip=10.0.0.7)\n{kind()}"
    error = lost_error("task 'map_chunk'", failed.as_instanceof_cause())
    assert str(error) == (
        "task 'map_chunk' has no room on node 10.0.0.7: its object store is full, and so is the "
        "disk to which Ray spills objects, by default that of /tmp/ray, of which Ray uses 95%. "
        "Make room there, or start the node with ray start --object-spilling-directory=FOLDER or "
        "more --object-store-memory; fit(resume=) continues from a checkpoint"
    )


def test_a_value_that_has_no_room_here_is_an_error(shared_ray, full_store):
    full_store()
    here = ray.util.get_node_ip_address()
    with pytest.raises(WorkerLostError, match=f"a value has no room on node {here}: "):
        shared_ray.publish(np.ones(3))


def test_a_task_whose_arguments_have_no_room_fails_alone(shared_ray, full_store):
    full_store()
    failing = shared_ray.submit(total, make(LARGE))
    other = shared_ray.submit(total, make(3))
    assert shared_ray.fetch([other]) == [3]
    with pytest.raises(WorkerLostError, match="has no room"):
        shared_ray.fetch([failing])


def test_values_that_cannot_be_kept_can_be_read(shared_ray, full_store, monkeypatch):
    monkeypatch.setattr(submitter, "KEEP_SECONDS", 0.0)
    monkeypatch.setattr(submitter, "KEEP_SHARE", 1e9)
    monkeypatch.setattr(submitter, "KEEP_CALLS_A_NODE", 0)
    made = shared_ray.submit(make, LARGE)
    assert shared_ray.fetch([made])[0].size == LARGE
    full_store()
    shared_ray.keep([made])
    assert shared_ray.fetch([shared_ray.submit(total, made)]) == [LARGE]
