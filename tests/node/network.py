"""A network between two ends in one process, which can be cut and mended."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Network:
    """A TCP proxy."""

    def __init__(self, target: str) -> None:
        self.port = int(target.rpartition(":")[2])
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.ends: list[socket.socket] = []
        self.silent = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self.port))
                except OSError:  # nobody listens there now
                    near.close()
                    continue
                self.ends += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if not self.silent:  # else it is lost, and nobody is told
                    target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Break the connections that there are, and none that is made meanwhile in their place."""
        ends, self.ends = self.ends, []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Carry again, on other connections: one that has lost a part of a greeting would wait 30 s for it."""
        self.silent = False
        self.cut()

    def close(self) -> None:
        self.listener.close()
        self.cut()
