"""Serving parameters over ZeroMQ, which the extra ``online`` installs: from a thread, or from another process.

A process is needed where threads of this one cannot be relied on. PyCOMPSs, for example, holds the global
interpreter lock while its binding waits for a task.
"""

import json
import pickle
import subprocess
import sys
from contextlib import suppress

import cloudpickle

from compss_train._utils import Closable
from compss_train._utils.validation import check_count
from compss_train.model.optimizers import OptimizerSpec, optimizer_factory
from compss_train.net.server import MessageServer
from compss_train.net.sockets import check_token, new_token
from compss_train.parameter_server.server_loop import ServerLoop

MAX_BACKLOG = 2**28
"""Default maximum of the bytes of pushes that wait at the server; further pushes wait at the clients."""
_CLOSE_SECONDS = 1.0
"""How long the process may take to end before it is killed."""


def serve(
    address: str | None = None,
    *,
    optimizer: OptimizerSpec | None = None,
    token: str | None = None,
    max_backlog: int = MAX_BACKLOG,
) -> ServerLoop:
    """Serve parameters to clients in other processes, or on other nodes, from a thread of this process.

    Parameters
    ----------
    address:
        The address to listen on. ``None``, the default, is for clients on this machine, of this user: a socket file
        in a folder that other users cannot open, or a free loopback port where socket files are impossible.
        ``tcp://*:5555`` accepts connections from other machines, ``tcp://127.0.0.1:5555`` from this one. Over TCP
        connections are authenticated and encrypted.
    optimizer:
        As for ``LocalParameterServer``.
    token:
        The secret that clients need; ``None`` draws a random one. It is not sent. Anyone who has it has all the
        rights of a client, and anyone who records TCP messages can try guesses: use ``secrets.token_urlsafe()``.
    max_backlog:
        The maximum number of bytes of pushes that wait here, 256 MiB by default; further pushes wait at the
        clients.

    Raises ``OSError`` if it cannot listen at the address, and ``ValueError`` for one that is not of TCP, and for an
    empty token.
    """
    check_count("max_backlog", max_backlog)
    factory = None if optimizer is None else optimizer_factory(optimizer)
    token = new_token() if token is None else check_token(token)
    return ServerLoop(MessageServer(address, token), factory, max_backlog)


class ServingProcess(Closable):
    """A server that runs in another process: its ``address``, the ``token`` that clients need, and ``close``."""

    def __init__(self, process: subprocess.Popen[str], sent: str) -> None:
        """``sent`` goes to its input, as the first line."""
        self._process = process
        try:
            started = json.loads(_first_line(process, sent))
            if "error" in started:
                raise OSError(started["error"])
        except BaseException:
            self.close()
            raise
        self.address, self.token = started["address"], started["token"]

    def close(self) -> None:
        """End the process; may be called again."""
        if self._process.returncode is None:
            try:
                self._process.communicate(timeout=_CLOSE_SECONDS)  # it ends at the end of its input
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.communicate()


def serve_apart(address: str | None = None, *, optimizer: OptimizerSpec | None = None) -> ServingProcess:
    """Serve parameters as ``serve`` does, from a process that ends with this one, even if this one is killed.

    The start takes as long as the import of torch. Raises ``OSError`` if it cannot listen at the address, or cannot
    load the optimizer.
    """
    sent = pickle.dumps((sys.path, cloudpickle.dumps(optimizer)))  # it may be a function of this program
    process = subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import _serve_until_closed; _serve_until_closed()", address or ""],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that Ctrl-C reaches this process only
    )

    return ServingProcess(process, sent.hex())


def _serve_until_closed() -> None:
    """Serve at the address in the process's arguments until its input ends, as it does when the parent ends.

    The first line of input is the optimizer. The first line of output is JSON: the address and token, or an error.
    """
    try:
        sys.path[:], optimizer = pickle.loads(bytes.fromhex(sys.stdin.readline()))
        serving = serve(sys.argv[1] or None, optimizer=pickle.loads(optimizer))
    except Exception as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return
    with serving:
        print(json.dumps({"address": serving.address, "token": serving.token}), flush=True)
        sys.stdin.read()


def _first_line(process: subprocess.Popen[str], sent: str) -> str:
    """Send a line to the process, and return its first line of output."""
    line = ""
    if process.stdin and process.stdout:
        with suppress(BrokenPipeError):  # it has ended
            print(sent, file=process.stdin, flush=True)
        line = process.stdout.readline()
    if not line:
        raise OSError("the parameter server's process ended before it served; its error output is above")
    return line
