"""The dashboard in a process of its own, of which processor time and memory are measured.

    python -m bench.dashboard.server URL

Prints the port once the whole cluster is read. The code to sign in is `CODE`.
"""

import asyncio
import sys

from aiohttp import ClientSession

from gpujob_dashboard.api_server import APIServer
from gpujob_dashboard.server import Dashboard, serve
from gpujob_dashboard.watched import Watched

CODE = "bench"


async def _run(url: str) -> None:
    async with ClientSession() as session:
        server = APIServer(session, url)
        watched = Watched(server, "default")
        dashboard = Dashboard(server, watched, code=CODE)
        waits: set[asyncio.Task[None]] = set()

        async def announce(port: int) -> None:
            while watched.current_at is None:
                await watched.next_revision(watched.revision, 1)
            print(port, flush=True)

        await serve(
            dashboard, "127.0.0.1", 0, lambda port: waits.add(asyncio.create_task(announce(port)))
        )


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1]))
