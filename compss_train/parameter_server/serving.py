"""Serving parameters over ZeroMQ: from a thread, or from another process.

The extra ``online`` installs ZeroMQ.

A process is needed where threads of this one cannot be relied on. PyCOMPSs, for example, holds the
global interpreter lock while its binding waits for a task.
"""

import os
import pickle
import signal
from contextlib import suppress
from typing import Any

import cloudpickle
from loky.backend.context import LokyContext

from compss_train._utils import Closable
from compss_train._utils.validation import check_token
from compss_train.model.optimizers import OptimizerSpec
from compss_train.net import MessageServer, new_token
from compss_train.parameter_server.local import LocalParameterServer
from compss_train.parameter_server.server_loop import ServerLoop

_CLOSE_SECONDS = 1.0
"""How long the process may take to end before it is killed."""


def serve(
    address: str | None = None, *, optimizer: OptimizerSpec | None = None, token: str | None = None
) -> ServerLoop:
    """Serve parameters to other processes and nodes, from a thread of this process.

    Parameters
    ----------
    address:
        The address to listen on. ``None``, the default, is for clients on this machine, of this
        user: a socket file in a folder that other users cannot open, or a free loopback port where
        socket files are impossible. ``tcp://*:5555`` accepts connections from other machines,
        ``tcp://127.0.0.1:5555`` from this one. Over TCP connections are authenticated and
        encrypted.
    optimizer:
        As for ``LocalParameterServer``.
    token:
        The secret that clients need; ``None`` (default) draws a random one. It is not sent. Anyone
        who has it has all the rights of a client, and anyone who records TCP messages can try
        guesses: use ``secrets.token_urlsafe()``.

    Raises ``OSError`` if it cannot listen at the address, and ``ValueError`` for an address that is
    not TCP and for an empty token.
    """
    store = LocalParameterServer(optimizer)
    token = new_token() if token is None else check_token(token)
    return ServerLoop(MessageServer(address, token), store)


class ServingProcess(Closable):
    """A server in another process: its ``pid``, ``address``, and the ``token`` of clients."""

    def __init__(self, address: str | None, optimizer: OptimizerSpec | None) -> None:
        context = LokyContext()
        self._pipe, pipe_of_process = context.Pipe()
        # It may be a function of this program.
        arguments = (pipe_of_process, address, cloudpickle.dumps(optimizer))
        self._process = context.Process(target=_serve_until_closed, args=arguments, daemon=True)
        self._process.start()
        self.pid: int = self._process.pid
        pipe_of_process.close()
        try:
            self.address, self.token, reason = self._pipe.recv()
            if reason:
                raise OSError(reason)
        except BaseException as error:
            self.close()
            if isinstance(error, EOFError):
                raise OSError(
                    "the parameter server's process ended before it served; its error output "
                    "is above"
                ) from None
            raise

    def close(self) -> None:
        """End the process; may be called again."""
        self._pipe.close()  # which ends it
        self._process.join(_CLOSE_SECONDS)
        if self._process.exitcode is None:  # even if it is stopped; loky's processes have no kill()
            os.kill(self.pid, signal.SIGKILL)
        self._process.join()


def serve_apart(
    address: str | None = None, *, optimizer: OptimizerSpec | None = None
) -> ServingProcess:
    """Serve parameters like ``serve``, from a process that ends with this one, however it ends.

    Starting it takes as long as importing torch. Raises ``OSError`` if it cannot listen at the
    address or load the optimizer.
    """
    return ServingProcess(address, optimizer)


def _serve_until_closed(pipe: Any, address: str | None, optimizer: bytes) -> None:
    """Serve until the other end of the pipe is closed, as it is when the parent ends.

    Sends the address, the token, and an error that is empty if it serves.
    """
    # Ctrl-C is for the parent, which then closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        serving = serve(address, optimizer=pickle.loads(optimizer))
    except Exception as error:
        pipe.send(("", "", str(error)))
        return
    with serving, suppress(EOFError):
        pipe.send((serving.address, serving.token, ""))
        pipe.recv()
