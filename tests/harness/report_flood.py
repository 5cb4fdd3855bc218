"""A flood at the report port, in a process of its own: `python -m tests.harness.report_flood`.

A third of the connections sends texts that are no tokens, a third tokens of pods that are not
there, a third forged tokens of a real worker; others send half a header and wait.
"""

import argparse
import asyncio
import secrets
from collections.abc import Callable
from urllib.parse import urlsplit

import aiohttp

from tests.harness.pod_tokens import pod_token

PAUSE_SECONDS = 1.0


async def flood(url: str, uid: str, connections: int, half_open: int) -> None:
    """Posts until it is killed, from the addresses 127.0.0.2 to 127.0.0.13."""
    addresses = [f"127.0.0.{number}" for number in range(2, 14)]
    tokens: list[Callable[[], str]] = [
        lambda: secrets.token_hex(16),
        lambda: pod_token("healthy", "first-1-0", secrets.token_hex(8), signature="no"),
        lambda: pod_token("healthy", "first-1-0", uid, signature=secrets.token_hex(4)),
    ]
    async with asyncio.TaskGroup() as tasks:
        for number in range(connections):
            address = addresses[number % len(addresses)]
            tasks.create_task(_post_for_ever(url, address, tokens[number // 12 % 3]))
        for number in range(half_open):
            tasks.create_task(_half_open_for_ever(url, addresses[number % len(addresses)]))


async def _post_for_ever(url: str, address: str, token: Callable[[], str]) -> None:
    connector = aiohttp.TCPConnector(local_addr=(address, 0), limit=1)
    async with aiohttp.ClientSession(connector=connector) as session:
        while True:
            headers = {"Authorization": f"Bearer {token()}"}
            try:
                async with session.post(url, data=b"{}", headers=headers) as answer:
                    await answer.read()
            except (aiohttp.ClientError, OSError):
                pass
            await asyncio.sleep(PAUSE_SECONDS)


async def _half_open_for_ever(url: str, address: str) -> None:
    server = urlsplit(url)
    while True:
        try:
            reader, writer = await asyncio.open_connection(
                server.hostname, server.port, local_addr=(address, 0)
            )
            writer.write(b"POST /report HTTP/1.1\r\nHost: x\r\nX-A: ")
            await reader.read(1)
            writer.close()
        except OSError:
            pass
        await asyncio.sleep(PAUSE_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("uid", help="of the pod healthy/first-1-0")
    parser.add_argument("--connections", type=int, default=1200)
    parser.add_argument("--half-open", type=int, default=900)
    options = parser.parse_args()
    asyncio.run(flood(options.url, options.uid, options.connections, options.half_open))


if __name__ == "__main__":
    main()
