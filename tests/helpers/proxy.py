"""A proxy between a client and a server over TCP, to lose what is on its way, and to see it."""

import socket
import threading
from contextlib import suppress


class Proxy:
    """Passes on what it receives; ``passed`` may change it."""

    def __init__(self, address: str) -> None:
        host, port = address.removeprefix("tcp://").split(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def passed(self, data: bytes, to_server: bool) -> bytes | None:
        """Return what to pass on; ``None`` to cut the connection."""
        return data

    def cut(self) -> None:
        """End all connections; return when client and server have noticed it."""
        for ends in list(self._open):
            for end in ends:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_WR)
        while self._threads:
            self._threads.pop().join()

    def close(self) -> None:
        """Accept no more connections, and end those that are left."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._serve, args=[near], daemon=True))
                self._threads[-1].start()

    def _serve(self, near: socket.socket) -> None:
        with near, suppress(ConnectionRefusedError), socket.create_connection(self._target) as far:
            self._open.append((near, far))
            answers = threading.Thread(target=self._forward, args=(far, near, False), daemon=True)
            answers.start()
            self._forward(near, far, True)
            answers.join()
            self._open.remove((near, far))

    def _forward(self, source: socket.socket, sink: socket.socket, to_server: bool) -> None:
        with suppress(OSError):
            while data := source.recv(2**16):
                if (data := self.passed(data, to_server)) is None:
                    source.shutdown(socket.SHUT_RDWR)
                    break
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
