"""Checks of ``compss-train doctor --engine ray``: Ray, the cluster, its links and nodes."""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
strategies = [On(node["NodeID"], soft=False) for node in nodes]
answers = [answer.options(scheduling_strategy=strategy).remote() for strategy in strategies]
for node, reference in zip(nodes, answers):
    try:
        reply = ray.get(reference, timeout=60)
    except Exception as error:
        reply = {"error": str(error).strip().splitlines()[-1]}
    resources = {name: int(node["Resources"].get(name, 0)) for name in ("CPU", "GPU")}
    print(json.dumps({"name": node["NodeManagerAddress"], **resources, **reply}))
"""
"""The program that joins the cluster at the address in the environment, as the engine does.

Prints a problem, or the milliseconds between the pings that Ray sends from here, and what each node
has.
"""


def check_ray() -> Iterator[Finding]:
    """Check that Ray is installed, a cluster answers, and nodes can import ``compss_train``."""
    version = installed_version("ray")
    advice = "pip install 'compss_train[ray]'"
    yield verdict("ray", version or "not installed", advice, ready=version is not None)
    if version is None:
        return
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        yield Finding("RAY_ADDRESS", "ok", "not set: engine='ray' starts a cluster on this machine")
        return
    result = run_program([sys.executable, "-c", PROBE], CLUSTER_TIMEOUT)
    lines = result.output.splitlines()
    here, *nodes = [json.loads(line) for line in lines if line.startswith("{")] or [{}]
    if result.code != 0:
        observation = here.get("problem") or f"{address}: {lines[-1] if lines else 'no answer'}"
        yield Finding("RAY_ADDRESS", "missing", observation)
        return
    yield Finding("RAY_ADDRESS", "ok", address)
    keepalives = [node["keepalive"] for node in nodes if "keepalive" in node]
    yield check_keepalive(here["keepalive"], keepalives)
    yield from map(_check_node, nodes)


def _check_node(node: Mapping[str, Any]) -> Finding:
    """Return whether a node can import this version, by what the program has printed of it."""
    name = f"node {node['name']}"
    observation = f"{node['CPU']} CPUs, {node['GPU']} GPUs"
    advice = "install the same compss_train on every node"
    if "error" in node:
        problem = f"cannot import compss_train: {node['error']}"
        return Finding(name, "missing", f"{observation}, {problem}", advice)
    if node["version"] != __version__:
        problem = f"compss_train {node['version']} instead of {__version__}"
        return Finding(name, "warning", f"{observation}, {problem}", advice)
    return Finding(name, "ok", observation)


def check_keepalive(here: int, of_nodes: Sequence[int]) -> Finding:
    """Compare the milliseconds between pings that the program (``here``) and the nodes have.

    A server of Ray's closes connections on which pings come more often than it would send them
    itself, and more often than once a minute.
    """
    name = f"RAY_{KEEPALIVE}"
    if set(of_nodes) <= {here}:
        return Finding(name, "ok", f"{here:,} ms here and on all nodes that answer")
    intervals = " and ".join(f"{milliseconds:,}" for milliseconds in sorted(set(of_nodes)))
    advice = (
        "where they differ, tasks of more than a minute die: unset it, or set it for all "
        "with --system-config of ray start --head"
    )
    return Finding(name, "missing", f"{here:,} ms here, {intervals} ms on the nodes", advice)
