"""The dashboard on a large cluster: milliseconds and bytes of each page, and the cost of viewers.

    python -m bench.dashboard [--gpus 1000] [--jobs 10000] [--viewers 200] [--seconds 30]

The dashboard runs in a process of its own and reads an API server in memory over HTTP. Pages are
fetched cold (rendered for the request) and warm. Viewers hold the stream of the Now page while jobs
change. Wall times include waiting for a processor; `processor_ms` and `processor_percent` do not.
"""

import argparse
import asyncio
import gzip
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
from aiohttp import ClientSession, CookieJar, TCPConnector

import gpujob_dashboard
from bench.dashboard import pages, streams
from bench.dashboard.cluster import Size, fill, state
from bench.dashboard.server import CODE
from bench.machine import print_result, yardstick_milliseconds
from bench.table import format_table
from tests.harness.http_api import HttpApi

ROUNDS = 5
EMPTY = Size(0, 0)
_KINDS = (".py", ".html", ".css", ".js")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.dashboard", description=__doc__)
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--viewers", type=int, default=200)
    parser.add_argument("--changes", type=float, default=50.0, help="changes of jobs a second")
    parser.add_argument("--seconds", type=float, default=30.0, help="time with viewers")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args(arguments)
    size = Size(options.gpus, options.jobs)
    load = streams.Load(options.viewers, options.changes, options.seconds)
    empty, _ = asyncio.run(_measure(EMPTY, options.rounds, None))
    full, viewed = asyncio.run(_measure(size, options.rounds, load))
    yardstick = yardstick_milliseconds()
    print(format_table([*empty, *full], pages.COLUMNS))
    print()
    print(format_table(viewed, streams.COLUMNS))
    code = code_size()
    print(f"\n{code['lines']} lines with templates, {code['script_gzipped_bytes']} bytes of script")
    print_result([*empty, *full], streams=viewed, code=code, yardstick_ms=round(yardstick, 1))
    return 0


async def _measure(
    size: Size, rounds: int, load: streams.Load | None
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    api = HttpApi()
    fill(api, size)
    with api.running():
        async with _serving(api) as (server, origin, session):
            known = state(size)
            rows = [
                await pages.measure(session, origin, one, known, size, rounds)
                for one in pages.pages(size)
            ]
            viewed = []
            if load is not None:
                viewed.append(await streams.measure(session, origin, api, server, size, load))
            return rows, viewed


@asynccontextmanager
async def _serving(api: HttpApi) -> AsyncGenerator[tuple[psutil.Process, str, ClientSession]]:
    """Yields the process of a dashboard, its address, and a client that is signed in."""
    command = (sys.executable, "-m", "bench.dashboard.server", api.url)
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None, "it is a pipe"
        async with asyncio.timeout(120):
            port = int(await process.stdout.readline())
        origin = f"http://127.0.0.1:{port}"
        jar = CookieJar(unsafe=True)
        connector = TCPConnector(limit=0)
        async with ClientSession(
            connector=connector, cookie_jar=jar, auto_decompress=False, read_bufsize=2**22
        ) as session:
            await (await session.get(f"{origin}/login", params={"code": CODE})).read()
            yield psutil.Process(process.pid), origin, session
    finally:
        process.terminate()
        await process.wait()


def code_size() -> Mapping[str, int]:
    """Returns the lines of the package with its templates, and the bytes of script, gzipped."""
    folder = Path(gpujob_dashboard.__file__).parent
    files = [path for path in sorted(folder.rglob("*")) if path.suffix in _KINDS]
    scripts = [path.read_bytes() for path in files if path.suffix == ".js"]
    return {
        "lines": sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files),
        "script_gzipped_bytes": sum(len(gzip.compress(one, mtime=0)) for one in scripts),
    }


if __name__ == "__main__":
    sys.exit(main())
