"""The one transport of all servers: ZeroMQ, encrypted over TCP, or through socket files.

Nothing is parsed, routed or kept for a connection before it has authenticated. Users define what
messages mean. Importing this package without ZeroMQ raises ``ModuleNotFoundError``, with the
command that installs it.
"""

from compss_train._utils.imports import import_optional

import_optional(
    "zmq", extra="online", needed_by="an online fit or a served parameter server", package="ZeroMQ"
)

# ruff: noqa: E402
from compss_train.net.connection import Address, Connection, ConnectionLostError
from compss_train.net.messages import (
    ArrayDescriptions,
    Header,
    Message,
    MessageError,
    ReceivedArray,
    joined,
    pack_arrays,
    pack_header,
    parsing,
    shortened,
)
from compss_train.net.server import Client, MessageServer, Received
from compss_train.net.shared_memory import SharedMemory, arrays_in, map_memory
from compss_train.net.sockets import derived_token, new_token

__all__ = [
    "Address",
    "ArrayDescriptions",
    "Client",
    "Connection",
    "ConnectionLostError",
    "Header",
    "Message",
    "MessageError",
    "MessageServer",
    "Received",
    "ReceivedArray",
    "SharedMemory",
    "arrays_in",
    "derived_token",
    "joined",
    "map_memory",
    "new_token",
    "pack_arrays",
    "pack_header",
    "parsing",
    "shortened",
]
