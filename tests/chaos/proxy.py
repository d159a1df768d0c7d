"""A TCP proxy before a broker, whose faults can be switched on and off."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_CHUNK = 1 << 16


class Proxy:
    """Forwards connections on `port` to `upstream`, in a thread of its own.

    Attributes:
        delay: seconds by which each piece of data is held back, each way.
        slices: whether data is passed on a byte at a time for the first hundred bytes of each piece.
    """

    def __init__(self) -> None:
        self.upstream = 0
        self.delay = 0.0
        self.slices = False
        self.port = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="proxy")
        self._thread.start()
        self._started.wait()

    def swallow(self, nothing_passes: bool) -> None:
        """Pass nothing on, with all connections open; or go on."""
        self._loop.call_soon_threadsafe(self._open.clear if nothing_passes else self._open.set)

    def reset(self) -> None:
        """Break all connections, as a router that forgets them does: with RST."""
        self._loop.call_soon_threadsafe(self._abort)

    def close(self) -> None:
        """Stop, and break all connections."""
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._open, self._ending = asyncio.Event(), asyncio.Event()
        self._open.set()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._ending.wait()
        server.close()
        self._open.set()
        while self._writers:
            self._abort()
            await asyncio.sleep(0.05)

    def _abort(self) -> None:
        for writer in self._writers:
            sock: socket.socket = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            to_broker, from_us = await asyncio.open_connection("127.0.0.1", self.upstream)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, from_us}
        try:
            await asyncio.gather(self._forward(reader, from_us), self._forward(to_broker, writer))
        finally:
            self._writers -= {writer, from_us}

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(_CHUNK):
                await self._open.wait()
                if self.delay:
                    await asyncio.sleep(self.delay)
                for piece in self._pieces(data):
                    writer.write(piece)
                    await writer.drain()
                    if self.slices:
                        await asyncio.sleep(0)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        if self.slices:
            yield from (data[at : at + 1] for at in range(min(100, len(data))))
            data = data[100:]
        if data:
            yield data


@contextmanager
def proxy() -> Iterator[Proxy]:
    """A proxy that ends with the block."""
    made = Proxy()
    try:
        yield made
    finally:
        made.close()
