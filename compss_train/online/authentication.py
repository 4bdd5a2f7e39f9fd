"""Authentication of connections over TCP: of both ends at the start, then of every message.

Nothing that a client sends is parsed or kept before it has proved that it has the token, which itself is not sent:

1. the listener sends a nonce, 32 random bytes,
2. the client sends a nonce of its own and its proof, 32 bytes each,
3. the listener sends its own proof of 32 bytes, or 32 zeros if the client's is wrong.

From token and nonces follow two keys, one for each direction. With the key of its direction each part of a message
gets a code (HMAC-SHA256, RFC 2104) that also covers its number, so that parts can be neither changed nor added,
left out, repeated or reordered on their way. They are not encrypted.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import time
from typing import Any, TypeAlias

from compss_train.net.tokens import derive_key

CODE_BYTES = 32
"""Size of nonces, proofs and codes."""
_REFUSED = bytes(CODE_BYTES)
_NUMBER = struct.Struct("<Q")

Bytes: TypeAlias = Any
"""Anything with the buffer protocol."""


class ConnectionLostError(OSError):
    """The peer has closed the connection, or it broke."""


class MessageCodes:
    """The codes of the parts of messages, in both directions; each part has the next number."""

    def __init__(self, sending: bytes, receiving: bytes, mask: bytes) -> None:
        self._mask = mask
        self._sending, self._receiving = (hmac.new(key, digestmod="sha256") for key in (sending, receiving))
        self._sent = self._received = 0

    def hide(self, secret: str) -> str:
        """Return a secret of at most 32 bytes, in hexadecimal, as nobody but the peer can read it.

        It is combined with a mask that follows from token and nonces: a one-time pad, for one secret a connection.
        """
        return bytes(a ^ b for a, b in zip(secret.encode(), self._mask, strict=False)).hex()

    def reveal(self, hidden: str) -> str:
        """Return the secret that the peer has hidden."""
        return bytes(a ^ b for a, b in zip(bytes.fromhex(hidden), self._mask, strict=False)).decode()

    def sign(self, *data: Bytes) -> bytes:
        """Return the code of the next part to be sent."""
        code = _code(self._sending, self._sent, data)
        self._sent += 1
        return code

    def check(self, code: Bytes, *data: Bytes) -> None:
        """Raise ``ConnectionLostError`` unless this is the code of the next part."""
        if not hmac.compare_digest(_code(self._receiving, self._received, data), code):
            raise ConnectionLostError("a message is not as it was sent: its authentication code is wrong")
        self._received += 1


def _code(keyed: hmac.HMAC, number: int, data: tuple[Bytes, ...]) -> bytes:
    code = keyed.copy()
    code.update(_NUMBER.pack(number))
    for part in data:
        code.update(part)
    return code.digest()


def accept_client(sock: socket.socket, token: str, seconds: float) -> MessageCodes | None:
    """Authenticate a client; return ``None`` if it has another token, after it has been sent that.

    Raises ``OSError`` if it takes longer than ``seconds`` in all.
    """
    deadline = time.monotonic() + seconds
    nonce = secrets.token_bytes(CODE_BYTES)
    sock.settimeout(seconds)
    sock.sendall(nonce)
    received = _read(sock, 2 * CODE_BYTES, deadline)
    nonces = nonce + received[:CODE_BYTES]
    if not hmac.compare_digest(received[CODE_BYTES:], derive_key(token, "client", nonces)):
        sock.sendall(_REFUSED)
        return None
    sock.sendall(derive_key(token, "listener", nonces))
    sock.settimeout(None)
    return MessageCodes(*(derive_key(token, purpose, nonces) for purpose in ("to client", "to listener", "key")))


def join_listener(sock: socket.socket, token: str, seconds: float) -> MessageCodes:
    """Authenticate to a listener, and authenticate it.

    Raises ``PermissionError`` if it refuses the token, and ``ConnectionLostError`` if its own proof is wrong.
    """
    deadline, peer = time.monotonic() + seconds, sock.getpeername()
    nonce = secrets.token_bytes(CODE_BYTES)
    nonces = _read(sock, CODE_BYTES, deadline) + nonce
    sock.sendall(nonce + derive_key(token, "client", nonces))
    proof = _read(sock, CODE_BYTES, deadline)
    if hmac.compare_digest(proof, _REFUSED):
        raise PermissionError(f"{peer[0]}:{peer[1]}: wrong token; use the token= given to fit_online")
    if not hmac.compare_digest(proof, derive_key(token, "listener", nonces)):
        raise ConnectionLostError(
            f"{peer[0]}:{peer[1]} has no proof of the token: another program listens there, or what it sent was "
            "changed on its way; check host and port"
        )
    sock.settimeout(None)
    return MessageCodes(*(derive_key(token, purpose, nonces) for purpose in ("to listener", "to client", "key")))


def _read(sock: socket.socket, size: int, deadline: float) -> bytes:
    """Read this many bytes until the deadline, however they arrive."""
    data = b""
    while len(data) < size:
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        received = sock.recv(size - len(data))
        if not received:
            raise ConnectionLostError("the peer closed the connection before it was authenticated")
        data += received
    return data
