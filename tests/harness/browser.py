"""Headless Chromium in tests: tabs at a dashboard, and everything that a tab complains about."""

import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.async_api import (
    Browser,
    ConsoleMessage,
    Dialog,
    Error,
    Page,
    Request,
    async_playwright,
    expect,
)

from gpujob_dashboard.sessions import COOKIE
from tests.harness.dashboard import Desk

_NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, _NAMES)), None)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium in PATH: `apt-get install chromium` installs it"
)
ANSWER_MILLISECONDS_MAX = 20_000
expect.set_options(timeout=ANSWER_MILLISECONDS_MAX)
_RUN_AXE = """async (rules) => {
  const found = await axe.run({runOnly: rules, resultTypes: ["violations"]});
  return found.violations.flatMap((rule) => rule.nodes.map(
    (node) => `${rule.id}: ${node.html}: ${node.failureSummary}`));
}"""
# The levels A and AA of WCAG 2.0 to 2.2, and the rules about headings and landmarks.
_RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


@dataclass
class Tab:
    """A page of the browser. `problems` are errors, dialogs and requests to other hosts."""

    page: Page
    origin: str
    problems: list[str] = field(default_factory=list[str])

    async def open(self, path: str, status: int = 200) -> None:
        answer = await self.page.goto(self.origin + path, wait_until="load")
        assert answer is not None
        assert answer.status == status, path

    async def resize(self, width: int) -> None:
        await self.page.set_viewport_size({"width": width, "height": 800})

    async def accessibility_problems(self, *rules: str) -> list[str]:
        """Elements that violate these rules of axe, or any of `_RULES`, and the reasons."""
        if not await self.page.evaluate("'axe' in window"):
            await self.page.evaluate(AXE_SCRIPT)
        return await self.page.evaluate(_RUN_AXE, list(rules or _RULES))

    def _note_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"{message.type}: {message.text}")

    def _note_error(self, error: Error) -> None:
        self.problems.append(f"exception: {error}")

    def _note_request(self, request: Request) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.origin).netloc:
            self.problems.append(f"request to {request.url}")

    async def _note_dialog(self, dialog: Dialog) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    def listen(self) -> None:
        self.page.on("console", self._note_console)
        self.page.on("pageerror", self._note_error)
        self.page.on("request", self._note_request)
        self.page.on("dialog", self._note_dialog)


@asynccontextmanager
async def running_browser() -> AsyncGenerator[Browser]:
    async with async_playwright() as playwright:
        # Tests may run as root, for whom Chromium has no sandbox.
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"], timeout=60_000
        )
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def open_tab(
    browser: Browser,
    desk: Desk,
    *,
    token: str | None = "local",
    scripts: bool = True,
    width: int = 1280,
) -> AsyncGenerator[Tab]:
    """Yields an empty tab with cookies of its own, signed in with this token unless it is None."""
    origin = f"http://{desk.client.host}:{desk.client.port}"
    context = await browser.new_context(
        java_script_enabled=scripts, viewport={"width": width, "height": 800}
    )
    context.set_default_timeout(ANSWER_MILLISECONDS_MAX)
    try:
        if token is not None:
            session = desk.dashboard.sessions.begin(token)
            await context.add_cookies([{"name": COOKIE, "value": session, "url": origin}])
        tab = Tab(await context.new_page(), origin)
        tab.listen()
        yield tab
    finally:
        await context.close()
