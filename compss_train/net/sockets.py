"""ZeroMQ sockets for servers and clients, which cannot be used without the token.

The token is the secret that the programs of a fit share. It is never sent: both ends of a
connection derive keys from it, and prove to each other that they have them before anything else is
exchanged. docs/trust.md says who needs which token.

Over TCP both ends use ZeroMQ's CURVE (CurveZMQ, RFC 26 of ZeroMQ): it authenticates both before
anything is routed or kept, and encrypts. On one machine a server listens at a socket file in a
folder that only its user can open, which needs no encryption.
"""

import hmac
import secrets
import threading
from typing import Any, TypeAlias

import zmq
from zmq.utils import z85

from compss_train.net.messages import PIECE

Socket: TypeAlias = zmq.Socket[Any]
Context: TypeAlias = zmq.Context[Socket]

WRONG_TOKEN = "the token is not the server's"
"""The error of clients with another token."""
LOOPBACK = "tcp://127.0.0.1:*"
"""Any port of this machine, for this machine only."""

PRIVATE = "ipc://"
"""The start of the addresses of socket files."""

HANDSHAKE_MILLISECONDS = 10_000
"""How long a handshake may take."""

LINGER_MILLISECONDS = 2000
"""How long a client that closes its connection may take to send what is left."""

HANDSHAKE_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
"""The events of a client's handshake that the server has refused."""

_END_SECONDS = 1.0
"""How much longer than its messages may take a context may need to end."""

_MAX_FRAME_BYTES = PIECE + 2**12  # encryption adds some

_NEVER_MILLISECONDS = 10**9
"""When a client would connect again, if it were not closed.

With -1 ZeroMQ drops what has arrived, and was not received yet, when a connection is lost.
"""
_KEEPALIVE = {
    "TCP_KEEPALIVE": 1,
    "TCP_KEEPALIVE_IDLE": 10,
    "TCP_KEEPALIVE_INTVL": 5,
    "TCP_KEEPALIVE_CNT": 3,
}
"""An idle connection to a node that failed is closed after 25 seconds."""


def server_socket(context: Context) -> Socket:
    """Return a socket that is ready to listen at a socket file; TCP needs a server's keys, too."""
    socket = _socket(context, zmq.ROUTER)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # sending to a client that is gone is an error
    socket.setsockopt(zmq.RCVHWM, 256)
    return socket


def client_socket(context: Context, address: str, token: str) -> Socket:
    """Return a socket that is ready to connect to the address of a server, once."""
    socket = _socket(context, zmq.DEALER)
    socket.setsockopt(zmq.RECONNECT_IVL, _NEVER_MILLISECONDS)
    socket.setsockopt(zmq.LINGER, 0)  # what a connection that breaks has not sent is dropped
    if not address.startswith(PRIVATE):
        socket.curve_serverkey, _ = curve_keys(token)
        socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
    return socket


def _socket(context: Context, kind: int) -> Socket:
    socket: Socket = context.socket(kind)
    # For the whole handshake, however slowly bytes arrive.
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MILLISECONDS)
    socket.setsockopt(zmq.MAXMSGSIZE, _MAX_FRAME_BYTES)
    for name, value in _KEEPALIVE.items():
        socket.setsockopt(getattr(zmq, name), value)
    return socket


def receive_frames(socket: Socket) -> list[zmq.Frame]:
    """Return the next message's frames, faster than pyzmq does; raise ``zmq.Again`` without one."""
    frames = [socket.recv(zmq.NOBLOCK, copy=False)]
    while frames[-1].more:
        frames.append(socket.recv(zmq.NOBLOCK, copy=False))
    return frames


def end(context: Context, milliseconds: int) -> None:
    """Close a context's sockets, and end it when all is transmitted, or after so long.

    About once in 4,000 times ZeroMQ 4.3.5 never ends a context whose last connections are being
    closed; its thread is left behind then.
    """
    thread = threading.Thread(
        target=context.destroy, args=(milliseconds,), name="end of a context", daemon=True
    )
    try:
        thread.start()
    except RuntimeError:  # at the end of a program Python 3.12 starts none
        context.destroy(milliseconds)
        return
    thread.join(milliseconds / 1000 + _END_SECONDS)


def new_token() -> str:
    """Return a random token of 128 bits."""
    return secrets.token_urlsafe(16)


def derive_key(token: str, purpose: str) -> bytes:
    """Return 32 bytes that only those who know the token can compute, other bytes for each purpose.

    They are HMAC-SHA256 (RFC 2104) of the purpose, with the token as key.
    """
    return hmac.digest(token.encode(errors="surrogatepass"), purpose.encode(), "sha256")


def derived_token(secret: str, purpose: str) -> str:
    """Return a token that only those who know a secret can compute, another for each purpose."""
    return derive_key(secret, purpose).hex()


def curve_keys(token: str) -> tuple[bytes, bytes]:
    """Return the public and the secret key of a server in ZeroMQ's CURVE handshake, as text in Z85.

    The public key also follows from the token and is not sent: without it, no client can begin a
    handshake, and without the secret key, nothing can impersonate the server.
    """
    secret = z85.encode(derive_key(token, "compss-train server"))
    return zmq.curve_public(secret), secret


def proof_of(token: str) -> str:
    """Return what a client's first message says to show that it has the token.

    It is for connections that are not encrypted.

    Only programs of the server's user can read it there; it finds clients that have the token of
    another server.
    """
    return derive_key(token, "compss-train hello").hex()
