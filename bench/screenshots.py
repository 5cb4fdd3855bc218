"""Pages of the dashboard of a cluster as pictures, for documents (`python -m bench.pictures`)."""

import asyncio
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from playwright.async_api import expect

from tests.harness.browser import running_browser

# The name of a picture, and the page that it shows.
PAGES = (("dashboard-now", "/"), ("dashboard-gpus", "/gpus"))
WIDTH, HEIGHT = 1200, 300
START_SECONDS_MAX = 60.0
PICTURE_BYTES_MAX = 120_000


def screenshots(environment: Mapping[str, str], folder: Path) -> Sequence[Path]:
    """Writes a PNG of each page of the cluster to which kubectl talks in this environment."""
    return asyncio.run(_screenshots(environment, folder))


async def _screenshots(environment: Mapping[str, str], folder: Path) -> Sequence[Path]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gpujob_dashboard", "--no-open"),
        env=environment,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None, "it is a pipe"
        async with asyncio.timeout(START_SECONDS_MAX):
            address = (await process.stdout.readline()).decode().split()[-1]
        return await _taken(address, folder)
    finally:
        process.terminate()
        await process.wait()


async def _taken(address: str, folder: Path) -> Sequence[Path]:
    taken: list[Path] = []
    async with running_browser() as browser:
        page = await browser.new_page(
            viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light"
        )
        await page.goto(address)
        for name, path in PAGES:
            await page.goto(address.partition("/login")[0] + path)
            await expect(page.locator("#stream")).to_have_text("live")
            picture = folder / f"{name}.png"
            await page.screenshot(path=picture, full_page=True)
            size = picture.stat().st_size
            assert size <= PICTURE_BYTES_MAX, f"{picture} has {size} bytes"
            taken.append(picture)
    return taken
