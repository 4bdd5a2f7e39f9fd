"""A Ray cluster of two nodes on this machine, which asks for a token, and the engine on it that tests share."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from compss_train.engines import RayEngine

NODE = {"num_cpus": 2, "object_store_memory": 300_000_000, "include_dashboard": False}


@contextmanager
def two_nodes() -> Iterator[Any]:
    """Start a cluster of two nodes with two CPUs each, and join it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")
        # Processes stay between tests: to start one anew takes seconds of a core.
        patch.setenv("RAY_num_workers_soft_limit", "8")
        patch.setenv("RAY_idle_worker_killing_time_threshold_ms", "600000")
        import ray
        from ray._raylet import Config
        from ray.cluster_utils import Cluster

        Config.initialize("")  # reads the environment again
        cluster = Cluster(initialize_head=True, head_node_args=dict(NODE))
        try:
            cluster.add_node(**NODE)
            ray.init(address=cluster.address, logging_level="ERROR")
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


class SharedRayEngine(RayEngine):
    """An engine that fits which fail cannot end, so that tests share it."""

    def shutdown(self, *, kill: bool = False) -> None:
        assert kill, "nobody but a fit that fails is to end it"

    def end(self) -> None:
        super().shutdown(kill=True)
