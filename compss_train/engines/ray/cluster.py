"""The Ray cluster of this program, which it joins, starts on this machine, or is in already."""

import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from compss_train._utils.imports import FOLDER_MODULES, import_optional
from compss_train._utils.private_names import forget_last_cluster
from compss_train._utils.validation import check_positive
from compss_train.engines.nodes import Node, cores

ADDRESS = "RAY_ADDRESS"
"""Environment variable with a cluster's address: host:port, or ``auto`` for one on this machine."""

TOKEN = "RAY_AUTH_TOKEN"
"""Environment variable with a cluster's token, where Ray looks for it first."""

TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"
"""Environment variable with the path of a file with the token, where Ray looks second."""

TOKEN_FILE = "~/.ray/auth_token"
"""The file where Ray looks for the token last."""

_CONNECT_SECONDS = 10.0

_LOCAL_ADDRESS = "127.0.0.2"
"""The address of a cluster that we start, for this machine only.

Ray replaces 127.0.0.1 by a public address.
"""

_SETTINGS = {
    "task_oom_retries": 3,  # as many as of tasks whose process dies; Ray's is no limit
    "worker_niceness": 0,  # as that of the program, like processes of the local engine
}
"""Settings of a cluster that we start, which Ray gives to all its processes, this one included.

A cluster that others have started gets none: a setting of one end of a connection alone can break
it. With a keepalive that only the program knows, for example, servers take its pings for an attack,
and close connections.
"""

LAST_WORDS = """
import socket, sys
host, port, text = sys.argv[1:]
if not sys.stdin.read():
    try:
        socket.create_connection((host, int(port)), 5).close()
    except OSError:
        sys.stderr.write(text)
"""
"""A program that prints a text if its input ends without one and nobody answers at an address."""

_MODE = "RAY_AUTH_MODE"
"""Environment variable that says whether Ray uses tokens."""

_OUR_VARIABLES = (TOKEN, _MODE, "RAY_USAGE_STATS_ENABLED")
"""What Ray or we set in the environment for our own cluster; other clusters must not see it."""


def import_ray() -> ModuleType:
    """Return the module ``ray``; raise ``ModuleNotFoundError`` if it is not installed."""
    # Print what workers print, also if several print the same.
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    ray: ModuleType = import_optional("ray", extra="ray", needed_by="engine='ray'")
    return ray


def join(modules: Sequence[str | ModuleType] = ()) -> Callable[[], None] | None:
    """Join the cluster at ``RAY_ADDRESS``, or start one; return what leaves or ends it.

    Returns ``None`` if the program is in a cluster already. ``modules`` are sent to the nodes:
    modules, or paths of modules or packages. Raises ``ValueError`` for an address of Ray Client,
    ``ConnectionError`` if no cluster is at the address, or if it refuses the token, and what
    ``ray.init`` raises, such as for other versions of Ray or Python than the cluster's.
    """
    ray = import_ray()
    address = os.environ.get(ADDRESS, "")
    client = ray.is_initialized() and ray.util.client.ray.is_connected()
    if client or (address.startswith("ray://") and not ray.is_initialized()):
        raise ValueError(
            f"{ADDRESS}={address}: Ray Client (ray://) has no object store on this side, and is "
            f"not supported; start the program on a node of the cluster, with {ADDRESS}=auto, or "
            "submit it: ray job submit -- ..."
        )
    if ray.is_initialized():
        return None
    environment: dict[str, Any] = {"py_modules": list(modules)} if modules else {}
    if os.environ.get(FOLDER_MODULES):
        environment["env_vars"] = {FOLDER_MODULES: os.environ[FOLDER_MODULES]}
    options = {"runtime_env": environment or None, "logging_level": "ERROR"}
    if address:
        _check_reachable(address)
    forget_last_cluster(ray)
    if not address:
        return _start(ray, options)
    try:
        with _sigterm_kept():
            ray.init(address=address, **options)
    except (ConnectionError, ray.exceptions.AuthenticationError) as error:
        # A ConnectionError has Ray's text of the error that it caught.
        if "AuthenticationError" not in f"{error!r} {error.__cause__}":
            raise
        has_token = not isinstance(error, ray.exceptions.AuthenticationError)
        raise ConnectionError(f"{ADDRESS}={address}: {_refusal(has_token=has_token)}") from error
    return _with_last_words(ray)


def _with_last_words(ray: ModuleType) -> Callable[[], None]:
    """Return what leaves the cluster. Until then a small process waits for the program's end.

    If the head is lost, Ray ends the program without any exception, and this process says what to
    do.
    """
    address = ray.get_runtime_context().gcs_address
    host, _, port = address.rpartition(":")
    text = (
        f"compss_train: the head of the Ray cluster at {address} is lost, and Ray ended this "
        "program. Start both again; fit(resume=True) continues from the newest checkpoint: "
        f"{shlex.join(sys.orig_argv)}\n"
    )
    command = [sys.executable, "-I", "-S", "-c", LAST_WORDS, host, port, text]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def leave() -> None:
        process.communicate(b"left")
        ray.shutdown()

    return leave


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Keep what SIGTERM does to this program, such as to save a fit.

    ``ray.init`` has handlers of its own, also below Python: one of them aborts the program.
    """
    handler = signal.getsignal(signal.SIGTERM)
    yield
    # Only the main thread may set handlers; one that was not set from Python is None.
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _start(ray: ModuleType, options: dict[str, Any]) -> Callable[[], None]:
    """Start a cluster on this machine; return what ends it and restores the environment."""
    before = dict(os.environ)

    def restore(*names: str) -> None:
        for name in names:
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]

    def end() -> None:
        ray.shutdown()
        restore(*_OUR_VARIABLES)

    # Ray asks for a token by default, and would write one into the home directory, where others may
    # read it.
    os.environ.setdefault(TOKEN, secrets.token_hex(32))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Processes find what this one finds.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    settings = {name: value for name, value in _SETTINGS.items() if f"RAY_{name}" not in before}
    try:
        with _sigterm_kept():
            ray.init(
                address="local",
                num_cpus=cores(),
                include_dashboard=False,
                _node_ip_address=_LOCAL_ADDRESS,
                _system_config=settings,
                **options,
            )
    except BaseException:
        end()
        raise
    finally:
        restore("PYTHONPATH")
    return end


def _refusal(*, has_token: bool) -> str:
    """Return why a cluster refuses this program, with or without a token, and what to do."""
    if os.environ.get(_MODE, "").lower() != "token":
        reason = f"the cluster asks for a token, and {_MODE}=token is not set here"
    elif has_token:
        variables = [name for name in (TOKEN, TOKEN_PATH) if os.environ.get(name)]
        source = variables[0] if variables else TOKEN_FILE
        reason = f"the cluster refuses the token in {source}, which is not the one of its nodes"
    else:
        reason = f"{_MODE}=token, but the token is missing here"
    return (
        f"{reason}. Set {_MODE}=token, and put the token with which the nodes were started in "
        f"{TOKEN}, in the file that {TOKEN_PATH} names, or in {TOKEN_FILE}; Ray takes the first "
        "one that it finds"
    )


def _check_reachable(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not port.isdecimal():  # "auto", or "local": Ray looks for it on this machine
        return
    try:
        socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
    except OSError as error:
        raise ConnectionError(
            f"{ADDRESS}={address}: no Ray cluster answers there ({error}); start one with ray "
            f"start --head, or unset {ADDRESS} for one on this machine only"
        ) from error


def nodes_by_id() -> dict[str, Node]:
    """Return the nodes that are alive, by their ids."""
    nodes = {}
    for node in import_ray().nodes():
        if node["Alive"]:
            nodes[node["NodeID"]] = Node(
                node["NodeManagerAddress"],
                cpus=int(node["Resources"].get("CPU", 0)),
                gpus=int(node["Resources"].get("GPU", 0)),
            )
    return nodes


_NO_CUSTOM = ("CPU", "GPU", "memory")
"""Resources of Ray that are no custom ones."""


def check_custom(resources: Mapping[str, float]) -> dict[str, float]:
    """Return custom resources of tasks; raise ``ValueError`` for others, and for wrong amounts."""
    for name, amount in resources.items():
        if name in _NO_CUSTOM:
            raise ValueError(
                f"resources={dict(resources)}: {name} is no custom resource; a worker's task takes "
                "as many CPUs as it has threads (threads=), and a share of build(num_gpu=)"
            )
        check_positive(f"resources[{name!r}]", amount)
    return dict(resources)


def check_available(resources: Mapping[str, float]) -> None:
    """Raise ``ValueError`` for custom resources that no node has all of, as tasks would wait."""
    if resources and not any(fitting_by_id(resources).values()):
        names = {name for node in import_ray().nodes() for name in node["Resources"]}
        custom = sorted(name for name in names if _is_custom(name))
        start = shlex.quote(json.dumps(dict(resources)))
        raise ValueError(
            f"resources={dict(resources)}: no node of the cluster has that, nodes have "
            f"{', '.join(custom) or 'no custom resources'}; start one with ray start "
            f"--resources={start}"
        )


def _is_custom(name: str) -> bool:
    is_of_ray = name.startswith(("node:", "accelerator_type:", "object_store_memory"))
    return not is_of_ray and name not in _NO_CUSTOM


def fitting_by_id(resources: Mapping[str, float]) -> dict[str, int]:
    """Return how many tasks with these custom resources fit on each node, by its id."""
    return {
        node["NodeID"]: min(
            int(node["Resources"].get(name, 0) / amount) for name, amount in resources.items()
        )
        for node in import_ray().nodes()
        if node["Alive"]
    }
