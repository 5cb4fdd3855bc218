"""A port on loopback that leads into a network namespace: `door.py PORT NAMESPACE_FILE INNER_PORT`.

The API server runs in a namespace that this machine's own network does not reach, on purpose. A
connection to 127.0.0.1:PORT is forwarded to 127.0.0.1:INNER_PORT inside. A socket belongs to the
namespace in which it was made. The listening one is made outside, and the connecting ones inside.
"""

import asyncio
import contextlib
import ctypes
import os
import socket
import sys

CLONE_NEWNET = 0x40000000
CHUNK_BYTES = 64 * 1024
BACKLOG = 128


def enter_network(namespace_file: str) -> None:
    descriptor = os.open(namespace_file, os.O_RDONLY)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(descriptor, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace_file}")
    finally:
        os.close(descriptor)


async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copies until the source ends or either side is gone."""
    with contextlib.suppress(OSError):
        while data := await source.read(CHUNK_BYTES):
            target.write(data)
            await target.drain()
    with contextlib.suppress(OSError):
        target.close()
        await target.wait_closed()


async def serve(listener: socket.socket, port: int) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer))

    server = await asyncio.start_server(connected, sock=listener)
    async with server:
        await server.serve_forever()


def main(port: str, namespace_file: str, inner_port: str) -> int:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", int(port)))
    listener.listen(BACKLOG)
    listener.setblocking(False)
    enter_network(namespace_file)
    asyncio.run(serve(listener, int(inner_port)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
