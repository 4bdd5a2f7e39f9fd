"""Checks of ``compss-train doctor --engine ray``: Ray's version, the cluster's address, its links
and nodes.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence

from compss_train._utils import __version__
from compss_train.cli.findings import Finding, installed_version, run_program, verdict

CLUSTER_TIMEOUT = 120.0
"""Seconds for a program that joins the cluster and starts a process on each node."""

KEEPALIVE = "grpc_client_keepalive_time_ms"
"""Ray's name for the time between the pings of a client that waits for an answer."""

PROBE = """
import json
from compss_train.engines.ray import cluster

try:
    cluster.join()
except Exception as error:
    print(json.dumps({"problem": " ".join(str(error).split())}), flush=True)
    raise SystemExit(1)

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

@ray.remote(num_cpus=0, max_retries=0)
def answer():
    keepalive = ray._config.grpc_client_keepalive_time_ms()
    from compss_train import __version__
    return {"version": __version__, "keepalive": keepalive}

print(json.dumps({"keepalive": ray._config.grpc_client_keepalive_time_ms()}))
nodes = [node for node in ray.nodes() if node["Alive"]]
on_nodes = [On(node["NodeID"], soft=False) for node in nodes]
asked = [answer.options(scheduling_strategy=on_node).remote() for on_node in on_nodes]
for node, ref in zip(nodes, asked):
    try:
        found = ray.get(ref, timeout=60)
    except Exception as error:
        found = {"error": str(error).strip().splitlines()[-1]}
    has = {name: int(node["Resources"].get(name, 0)) for name in ("CPU", "GPU")}
    print(json.dumps({"name": node["NodeManagerAddress"], **has, **found}))
"""
"""The program that joins the cluster at the address in the environment, as the engine does.

Prints a problem; or the milliseconds between the pings that Ray sends from here, and what each node
has.
"""


def check_ray() -> Iterator[Finding]:
    """Check that Ray is installed, that a cluster answers, and that its nodes can import
    ``compss_train``.
    """
    version = installed_version("ray")
    yield verdict(
        "ray", version is not None, version or "not installed", "pip install 'compss_train[ray]'"
    )
    if version is None:
        return
    if not (address := os.environ.get("RAY_ADDRESS")):
        yield Finding("RAY_ADDRESS", "ok", "not set: engine='ray' starts a cluster on this machine")
        return
    result = run_program([sys.executable, "-c", PROBE], CLUSTER_TIMEOUT)
    lines = result.output.splitlines()
    here, *nodes = [json.loads(line) for line in lines if line.startswith("{")] or [{}]
    if result.code != 0:
        found = here.get("problem") or f"{address}: {lines[-1] if lines else 'no answer'}"
        yield Finding("RAY_ADDRESS", "missing", found)
        return
    yield Finding("RAY_ADDRESS", "ok", address)
    yield check_keepalive(
        here["keepalive"], [node["keepalive"] for node in nodes if "keepalive" in node]
    )
    for node in nodes:
        name = f"node {node['name']}"
        found = f"{node['CPU']} CPUs, {node['GPU']} GPUs"
        advice = "install the same compss_train on every node"
        if "error" in node:
            yield Finding(
                name, "missing", f"{found}, cannot import compss_train: {node['error']}", advice
            )
        elif node["version"] != __version__:
            yield Finding(
                name,
                "warning",
                f"{found}, compss_train {node['version']} instead of {__version__}",
                advice,
            )
        else:
            yield Finding(name, "ok", found)


def check_keepalive(here: int, there: Sequence[int]) -> Finding:
    """Compare the milliseconds between pings that the program (``here``) and the nodes have.

    A server of Ray's closes connections on which pings come more often than it would send them
    itself, and more often than once a minute.
    """
    name = f"RAY_{KEEPALIVE}"
    if {*there} <= {here}:
        return Finding(name, "ok", f"{here:,} ms here and on all nodes that answer")
    found = (
        f"{here:,} ms here, {' and '.join(f'{each:,}' for each in sorted({*there}))} ms on "
        "the nodes"
    )
    advice = (
        "where they differ, tasks of more than a minute die: unset it, or set it for all "
        "with --system-config"
    )
    return Finding(name, "missing", found, f"{advice} of ray start --head")
