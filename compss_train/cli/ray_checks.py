"""Checks of ``compss-train doctor --engine ray``: Ray's version, the cluster's address, and its nodes."""

import json
import os
import sys
from collections.abc import Iterator

from compss_train._utils import __version__
from compss_train.cli.findings import Finding, installed_version, run_program, verdict

CLUSTER_TIMEOUT = 120.0
"""Seconds for a program that joins the cluster and starts a process on each node."""

PROBE = """
import json
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

ray.init(log_to_driver=False, logging_level="ERROR")

@ray.remote(num_cpus=0, max_retries=0)
def version():
    from compss_train import __version__
    return __version__

nodes = [node for node in ray.nodes() if node["Alive"]]
asked = [version.options(scheduling_strategy=On(node["NodeID"], soft=False)).remote() for node in nodes]
for node, ref in zip(nodes, asked):
    try:
        found = {"version": ray.get(ref, timeout=60)}
    except Exception as error:
        found = {"error": str(error).strip().splitlines()[-1]}
    has = {name: int(node["Resources"].get(name, 0)) for name in ("CPU", "GPU")}
    print(json.dumps({"name": node["NodeManagerAddress"], **has, **found}))
"""
"""The program that joins the cluster, whose address is in the environment; prints a line for each node."""


def check_ray() -> Iterator[Finding]:
    """Check that Ray is installed, that a cluster answers, and that its nodes can import ``compss_train``."""
    version = installed_version("ray")
    yield verdict("ray", version is not None, version or "not installed", "pip install 'compss_train[ray]'")
    if version is None:
        return
    if not (address := os.environ.get("RAY_ADDRESS")):
        yield Finding("RAY_ADDRESS", "ok", "not set: engine='ray' starts a cluster on this machine")
        return
    result = run_program([sys.executable, "-c", PROBE], CLUSTER_TIMEOUT)
    lines = result.output.splitlines()
    if result.code != 0:
        advice = (
            "start a cluster with ray start --head; versions of Ray and Python, and RAY_AUTH_TOKEN, must be its own"
        )
        yield Finding("RAY_ADDRESS", "missing", f"{address}: {lines[-1] if lines else 'no answer'}", advice)
        return
    yield Finding("RAY_ADDRESS", "ok", address)
    for node in (json.loads(line) for line in lines if line.startswith("{")):
        name, found = f"node {node['name']}", f"{node['CPU']} CPUs, {node['GPU']} GPUs"
        advice = "install the same compss_train on every node"
        if "error" in node:
            yield Finding(name, "missing", f"{found}, cannot import compss_train: {node['error']}", advice)
        elif node["version"] != __version__:
            yield Finding(
                name, "warning", f"{found}, compss_train {node['version']} instead of {__version__}", advice
            )
        else:
            yield Finding(name, "ok", found)
