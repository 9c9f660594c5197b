"""A proxy before a MongoDB server that breaks chosen requests: before they arrive, or after they were carried out."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import bson

#: Requests that read or write a store; greetings and sessions are not counted.
COUNTED = frozenset({"find", "getMore", "aggregate", "insert", "update", "delete", "listCollections", "bulkWrite"})
_OP_MSG = 2013


class WireProxy:
    """Counts requests; from ``fault_at`` on it breaks ``times`` of them."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self.port = self._listener.getsockname()[1]
        self.count = 0
        self.fault_at, self.times = 0, 0
        self.mode: Literal["before", "after"] = "before"
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, fault_at: int, times: int, mode: Literal["before", "after"]) -> None:
        """Breaks ``times`` requests, the first being the ``fault_at``-th from now."""
        with self._lock:
            self.count, self.fault_at, self.times, self.mode = 0, fault_at, times, mode

    def close(self) -> None:
        """Stops listening and drops every connection."""
        self._listener.close()
        for item in list(self._sockets):
            with contextlib.suppress(OSError):
                item.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.create_connection(self._target)
        self._sockets |= {client, server}
        try:
            while (request := _message(client)) is not None:
                breaks = self._breaks(request)
                if breaks and self.mode == "before":
                    return
                server.sendall(request)
                reply = _message(server)
                if reply is None or breaks:
                    return
                client.sendall(reply)
        except OSError:
            return
        finally:
            for item in (client, server):
                with contextlib.suppress(OSError):
                    item.close()
                self._sockets.discard(item)

    def _breaks(self, request: bytes) -> bool:
        if _command(request) not in COUNTED:
            return False
        with self._lock:
            self.count += 1
            if self.times and self.fault_at and self.count >= self.fault_at:
                self.times -= 1
                return True
        return False


def _message(source: socket.socket) -> bytes | None:
    head = _exactly(source, 16)
    if head is None:
        return None
    rest = _exactly(source, struct.unpack("<i", head[:4])[0] - 16)
    return None if rest is None else head + rest


def _exactly(source: socket.socket, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        piece = source.recv(min(1 << 20, size - len(data)))
        if not piece:
            return None
        data += piece
    return data


def _command(message: bytes) -> str:
    if struct.unpack("<i", message[12:16])[0] != _OP_MSG:
        return ""
    at = 20
    while at < len(message):
        size = struct.unpack("<i", message[at + 1 : at + 5])[0]
        if message[at] == 0:
            return str(next(iter(bson.decode(message[at + 1 : at + 1 + size]))))
        at += 1 + size
    return ""


@contextmanager
def wire_proxy(host: str, port: int) -> Iterator[WireProxy]:
    """A proxy on loopback before that server."""
    proxy = WireProxy((host, port))
    try:
        yield proxy
    finally:
        proxy.close()
