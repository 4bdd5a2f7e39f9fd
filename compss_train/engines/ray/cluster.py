"""The Ray cluster of this program: one that it joins, starts on this machine, or has joined before."""

import os
import secrets
import socket
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from compss_train._utils.imports import FOLDER_MODULES, import_optional
from compss_train.engines.nodes import Node, cores

ADDRESS = "RAY_ADDRESS"
"""Environment variable with a cluster's address, as host:port, or ``auto`` for one that runs on this machine."""

_CONNECT_SECONDS = 10.0
_OURS = "127.0.0.2"
"""The address of a cluster that we start, for this machine only. Ray replaces 127.0.0.1 by a public address."""


def import_ray() -> ModuleType:
    """Return the module ``ray``; raise ``ModuleNotFoundError`` if it is not installed."""
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # print what workers print, also if several print the same
    # Without these a task whose node was cut off, in a network that lost no connection, is waited for 7 minutes.
    os.environ.setdefault("RAY_grpc_client_keepalive_time_ms", "20000")
    os.environ.setdefault("RAY_grpc_client_keepalive_timeout_ms", "20000")
    ray: ModuleType = import_optional("ray", extra="ray", needed_by="engine='ray'")
    return ray


def join(modules: Sequence[str | ModuleType] = ()) -> bool:
    """Join the cluster at ``RAY_ADDRESS``, or start one; return ``False`` if the program is in a cluster already.

    ``modules`` are sent to the nodes: modules, or paths of modules or packages. Raises ``ValueError`` for an
    address of Ray Client, ``ConnectionError`` if no cluster is at the address, and what ``ray.init`` raises, such
    as for other versions of Ray or Python than the cluster's, or without its token.
    """
    ray = import_ray()
    address = os.environ.get(ADDRESS, "")
    client = ray.is_initialized() and ray.util.client.ray.is_connected()
    if client or (address.startswith("ray://") and not ray.is_initialized()):
        raise ValueError(
            f"{ADDRESS}={address}: Ray Client (ray://) has no object store on this side, and is not supported; "
            f"start the program on a node of the cluster, with {ADDRESS}=auto, or submit it: ray job submit -- ..."
        )
    if ray.is_initialized():
        return False
    environment: dict[str, Any] = {"py_modules": list(modules)} if modules else {}
    if names := os.environ.get(FOLDER_MODULES):
        environment["env_vars"] = {FOLDER_MODULES: names}
    options = {"runtime_env": environment or None, "logging_level": "ERROR"}
    if address:
        _check_reachable(address)
        ray.init(address=address, **options)
        return True
    # Ray asks for a token by default, and would write one into the home directory, where others may read it.
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_task_oom_retries", "3")  # as many as of tasks whose process dies; Ray's is no limit
    os.environ.setdefault("RAY_worker_niceness", "0")  # as that of the program, like processes of the local engine
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # processes find what this one finds
    try:
        ray.init(address="local", num_cpus=cores(), include_dashboard=False, _node_ip_address=_OURS, **options)
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before
    return True


def _check_reachable(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not port.isdecimal():  # "auto", or "local": Ray looks for it on this machine
        return
    try:
        socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
    except OSError as error:
        raise ConnectionError(
            f"{ADDRESS}={address}: no Ray cluster answers there ({error}); start one with ray start --head, or "
            f"unset {ADDRESS} for one on this machine only"
        ) from error


def nodes_by_id() -> dict[str, Node]:
    """Return the nodes that are alive, by their ids."""
    nodes = {}
    for node in import_ray().nodes():
        if node["Alive"]:
            has = node["Resources"]
            nodes[node["NodeID"]] = Node(node["NodeManagerAddress"], int(has.get("CPU", 0)), int(has.get("GPU", 0)))
    return nodes
