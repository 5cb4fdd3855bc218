"""Addresses that a process of ours listens on, and the server behind one."""

import argparse
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web


@dataclass(frozen=True, slots=True)
class Listen:
    host: str
    port: int


def listen(text: str) -> Listen:
    """HOST:PORT, as an option's type."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"must be HOST:PORT; got {text!r}")
    return Listen(host, int(port))


@asynccontextmanager
async def site(application: web.Application, address: Listen) -> AsyncGenerator[str]:
    """Serves an application; yields its URL with the port that was taken."""
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, address.host, address.port).start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()
