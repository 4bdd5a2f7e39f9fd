"""A node that tests may lose."""

import pytest

from compss_train.engines import Resources
from tests.helpers.ray_cluster import NODE
from tests.helpers.waiting import wait_until


@pytest.fixture
def third_node(ray_cluster, shared_ray, monkeypatch):
    """A node that has just joined, and is gone after the test."""
    monkeypatch.setattr("compss_train.engines.ray.submitter.NODES_SECONDS", 0.1)
    before = shared_ray.slots(Resources())
    node = ray_cluster.add_node(**NODE)
    wait_until(lambda: shared_ray.slots(Resources()) == before + 2)
    yield node
    if node in ray_cluster.list_all_nodes():
        ray_cluster.remove_node(node, allow_graceful=False)
    wait_until(lambda: shared_ray.slots(Resources()) == before)
