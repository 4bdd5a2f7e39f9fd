"""Messages that nobody should send: valid ones with one thing or several changed, and clients that
send them.
"""

import json
import random
from contextlib import suppress

import zmq

from compss_train.net import sockets
from tests.helpers.waiting import LIMIT

DEEP = 900
"""Lists in lists that JSON can still be read with, but that are too deep for ``==`` and ``repr``
further down.
"""


def nested(depth, inner="0"):
    return json.loads("[" * depth + inner + "]" * depth)


NUMBERS = [-1, 0, 1, 7, 2**31, 2**53 + 1, 2**62, 2**63, -(2**63), 10**40, 10**4000, -(10**4000)]
NUMBERS += [None, True, False, 0.5, 3.0, 1e300, -0.0, float("nan"), float("inf"), float("-inf")]
TEXTS = ["", "0", "w", "uint8", "x" * 10_000, "é" * 5000, "\ud800", "\udfff" * 50, "\x00\x1b[2J\n"]
TEXTS += ["tcp://127.0.0.1:1"]
OTHERS = [
    [],
    [[]],
    [0],
    [None],
    ["uint8", [1]],
    {},
    {"a": {}},
    {"\ud800": 1},
    [1] * 1000,
    nested(DEEP),
    nested(40),
]
VALUES = [*NUMBERS, *TEXTS, *OTHERS]
LONG = ["é" * 400_000, "x" * 1_000_000, "\x01" * 170_000, "\ud800" * 170_000, [0] * 400_000]
"""Of almost a mebibyte as a client can send them; most are longer in JSON without other characters
than ASCII.
"""
NAMES = [
    *(
        "call",
        "key",
        "number",
        "count",
        "priority",
        "optimized",
        "records",
        "self",
        "arrays",
        "proof",
        "client",
    ),
    *(
        "generation",
        "continues",
        "role",
        "name",
        "stream",
        "sample",
        "step",
        "steps",
        "end",
        "finished",
        "failed",
        "url",
    ),
    *(
        "report",
        "traceback",
        "timeout",
        "stack",
        "interrupted",
        "part",
        "done",
        "repetitions",
        "error",
    ),
    *("", "é", "\ud800"),
]
DESCRIPTIONS = [
    *(
        3,
        None,
        "ab",
        {"ab": 1},
        {"uint8": [1]},
        [[]],
        [[], {}],
        [["float32"]],
        [["object", [1]]],
        [[["x"], [1]]],
    ),
    *(
        [["uint8", [2**60]]],
        [["bool", [-1]]],
        [["half", [10**40]]],
        [["uint8", [2**31] * 3]],
        [["uint8", "a"]],
    ),
    *(
        [["float32", [1] * 100_000]],
        [["bool", [0]]] * 1000,
        [["uint8", [0, 2**62]]],
        [["uint8", [None]]],
    ),
    *(
        [["uint8", [1.5]]],
        [["uint8", [True]]],
        [["uint8", [float("nan")]]],
        [["uint8", 4]],
        [[None, [1]]],
    ),
]


def encoded(header):
    """Return a header as a client may write it, short and with any characters."""
    return json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )


class Fuzzer:
    """Draws changed messages, from a seed."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.messages = 0

    def frames(self, header, arrays=(), *, changed=True):
        """Return the frames of a message, usually with changes."""
        described = [[str(array.dtype), list(array.shape)] for array in arrays]
        frames = [array.tobytes() for array in arrays]
        header = {"arrays": described, **header}
        if changed:
            for _ in range(self.random.choice([1, 1, 1, 2, 3])):
                self.random.choice(
                    [self.change_field] * 6 + [self.change_arrays, self.swap_frames]
                )(header, frames)
        first = encoded(header)
        if changed and self.random.random() < 0.15:
            first = self.change_bytes(first)
        self.messages += 1
        return [first, *frames]

    def change_field(self, header, frames):
        name = self.random.choice([*header, *header, self.random.choice(NAMES)])
        match self.random.randrange(8):
            case 0:
                header.pop(name, None)
            case 1:
                header[self.random.choice(NAMES)] = header.get(name)
            case 2 if self.random.random() < 0.3:
                header[name] = self.random.choice(LONG)
            case 3 if isinstance(header.get(name), int):
                header[name] += self.random.choice([-2, -1, 1, 2, 10**6])
            case _:
                header[name] = self.random.choice(VALUES)

    def change_arrays(self, header, frames):
        header["arrays"] = self.random.choice([*DESCRIPTIONS, header.get("arrays")])
        if self.random.random() < 0.5:
            frames[:] = [
                bytes(self.random.choice([0, 1, 4, 8, 1000]))
                for _ in range(self.random.randrange(4))
            ]

    def swap_frames(self, header, frames):
        match self.random.randrange(5):
            case 0:
                frames.clear()
            case 1:
                frames += [b""] * self.random.choice([1, 2, 500])
            case 2 if frames:
                frames[0] = frames[0][: self.random.randrange(len(frames[0]) + 1)]
            case 3 if frames:
                frames[0] = self.random.randbytes(len(frames[0]))
            case _:
                frames.insert(0, self.random.randbytes(self.random.choice([1, 8, 2**16])))

    def change_bytes(self, first):
        data = bytearray(first)
        match self.random.randrange(7):
            case 0:
                return self.random.randbytes(self.random.choice([0, 1, 64, 5000]))
            case 1:
                return first[: self.random.randrange(len(first) + 1)]
            case 2:
                return first + self.random.choice([first, b"\x00", b"{}", b"]"])
            case 3:
                with suppress(UnicodeDecodeError):
                    return first.decode().encode(
                        self.random.choice(["utf-16", "utf-32", "utf-8-sig"])
                    )
                return b"[" * 100_000
            case 4:
                # The same key twice.
                return first.replace(b"{", b'{"call":"push","role":"x","stream":1,', 1)
            case _:
                for _ in range(self.random.choice([1, 1, 4])):
                    data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
                return bytes(data)


class FuzzingClient:
    """A client that sends frames as they are; over TCP it has the token, at a socket file it may
    prove that.
    """

    def __init__(self, url, token):
        self.context = zmq.Context()
        self.socket = sockets.client_socket(self.context, url, token)
        self.socket.setsockopt(zmq.IMMEDIATE, 1)
        self.socket.connect(url)
        self.connected = False
        self.proof = {"proof": sockets.proof_of(token)} if url.startswith("ipc") else {}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        sockets.end(self.context, 200)

    def send(self, frames, *, keep_answers=False):
        """Send frames; return False if the server has ended the connection."""
        with suppress(zmq.Again):
            while not keep_answers:
                self.socket.recv_multipart(zmq.NOBLOCK)
        if not self.socket.poll(0 if self.connected else 1000 * LIMIT, zmq.POLLOUT):
            return False
        self.connected = True
        try:
            self.socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:  # it was ended a moment ago
            return False
        return True
