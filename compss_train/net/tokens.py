"""Tokens: the secret that the programs of a fit share, and the keys that follow from it.

A token itself is never sent. Both ends of a connection derive keys from it, and prove to each other that they have
them before anything else is exchanged. docs/security.md says who needs which token.
"""

import hmac
import secrets
from typing import Any

WRONG_TOKEN = "the token is not the server's"
"""The error of clients with another token."""


def new_token() -> str:
    """Return a random token of 128 bits."""
    return secrets.token_urlsafe(16)


def check_token(token: Any) -> str:
    """Return the token; raise ``ValueError`` unless it is a string that is not empty."""
    if not isinstance(token, str) or not token:
        raise ValueError(
            f"token={token!r}: give a secret string that is not empty, such as secrets.token_urlsafe()"
        )
    return token


def derive_key(token: str, purpose: str, *parts: bytes) -> bytes:
    """Return 32 bytes that only those who know the token can compute; others for each purpose.

    They are HMAC-SHA256 (RFC 2104), with the token as key, of the purpose and the parts, whose lengths are fixed.
    """
    return hmac.digest(token.encode(errors="surrogatepass"), b"".join([purpose.encode(), *parts]), "sha256")


def curve_keys(token: str) -> tuple[bytes, bytes]:
    """Return the public and the secret key of a server in ZeroMQ's CURVE handshake, as text in Z85.

    The public key follows from the token, too, and is not sent: who does not have it cannot begin a handshake, and
    who does not have the secret one cannot pretend to be the server. Raises ``OSError`` without CURVE.
    """
    import zmq
    from zmq.utils import z85

    if not zmq.has("curve"):
        raise OSError("this ZeroMQ was built without CURVE, which TCP needs: install pyzmq from its wheels")

    secret = z85.encode(derive_key(token, "compss-train server"))
    return zmq.curve_public(secret), secret


def proof_of(token: str) -> str:
    """Return what a client's first message says to show that it has the token, where nothing is encrypted.

    Only programs of the server's user can read it there; it finds clients that have the token of another server.
    """
    return derive_key(token, "compss-train hello").hex()
