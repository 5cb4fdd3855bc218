"""The pages in a real browser: complete, accessible, live, and safe against hostile texts."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from gpujob_api.gpujob import GPUJob, JobFailure, JobPhase
from gpujob_api.quantities import GIB
from gpujob_api.report import FailureClass
from gpujob_dashboard.pages.contents import ROWS_MAX
from gpujob_dashboard.pages.gpus import TILES_MAX
from gpujob_dashboard.server import REST_SECONDS
from gpujob_operator.client.kube import JOBS
from tests.harness.browser import (
    Tab,
    needs_chromium,
    open_tab,
    running_browser,
)
from tests.harness.builders import (
    after,
    make_gpu,
    make_job,
    make_queue,
    measured,
    reserve,
    running,
    with_status,
)
from tests.harness.dashboard import Desk, running_dashboard, waiting
from tests.harness.manifests import Manifest, gpu_node_manifest, job_manifest

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module"), needs_chromium]

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>\"'>\u202e"
NARROW = 320
PAGES = (
    "/",
    "/?status=waiting",
    "/gpus",
    "/gpus/n0",
    "/queues",
    "/queues/default",
    "/services",
    "/job/team/train",
    "/job/team/waits-000",
    "/what-if?add=n0%3D2&horizon=1m",
    "/what-if?job=team%2Fwaits-000&priority=5&horizon=1m",
    "/health",
)
# Everything that a keyboard has to reach.
CONTROLS = "a[href], button, input:not([type=hidden]), select, textarea, [tabindex='0']"
# Notes every control that gets the focus.
NOTE_FOCUS = """(controls) => {
  window.visited = [];
  document.addEventListener("focusin", ({target}) => {
    const style = getComputedStyle(target), box = target.getBoundingClientRect();
    window.visited.push({
      number: [...document.querySelectorAll(controls)].indexOf(target),
      outlined: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
      seen: box.width > 0 && box.bottom > 0 && box.right > 0
        && box.top < innerHeight && box.left < innerWidth,
    });
  });
}"""
# The text of a page without its times, which a script turns into ages.
FACTS = """() => {
  const main = document.querySelector("main").cloneNode(true);
  for (const time of main.querySelectorAll("time")) time.remove();
  return main.textContent.replace(/\\s+/g, " ").trim();
}"""


def failed(job: GPUJob, message: str) -> GPUJob:
    failure = JobFailure(FailureClass.DATA, message)
    return with_status(
        job, phase=JobPhase.FAILED, failure=failure, finished_at=after(30), observed_generation=1
    )


def training(name: str, step: int = 10) -> GPUJob:
    return running(
        make_job(name, uid=name), held=reserve(GIB), measurement=measured(GIB, step=step),
        observed_at=after(50), observed_generation=1,
    )  # fmt: skip


def jobs() -> Sequence[GPUJob]:
    """Jobs of every state, and more that wait than a page shows."""
    waits = [
        waiting(
            make_job(f"waits-{n:03}", uid=f"w{n}", created=n / 100),
            "InsufficientCapacity", "no GPU has 8 GiB",
        )
        for n in range(ROWS_MAX + 5)
    ]  # fmt: skip
    ended = failed(make_job("ended", uid="ended"), "label 1001 is out of range")
    rests = make_job("rests", uid="rests", suspend=True)
    return [training("train"), *waits, ended, rests]


def nodes() -> Sequence[Manifest]:
    """A node with a healthy and an unhealthy GPU, and one without readings for a day."""
    gpus = (make_gpu("GPU-0", unmanaged=GIB), make_gpu("GPU-1", index=1, healthy=False))
    return [
        gpu_node_manifest("n0", *gpus, observed_at="2026-01-01T00:00:30Z"),
        gpu_node_manifest("n1", make_gpu("GPU-2"), observed_at="2025-12-31T00:00:00Z"),
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator[Browser]:
    async with running_browser() as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def desk() -> AsyncGenerator[Desk]:
    """A dashboard that tests only read."""
    queues = [make_queue("research", gpus=4)]
    async with running_dashboard(*jobs(), nodes=nodes(), queues=queues) as found:
        yield found


async def check_accessible(tab: Tab) -> None:
    assert await tab.accessibility_problems() == []
    await tab.page.emulate_media(color_scheme="dark")
    assert await tab.accessibility_problems("color-contrast") == []
    await tab.page.emulate_media(color_scheme="light")


async def check_narrow(tab: Tab) -> None:
    await tab.resize(NARROW)
    wide = await tab.page.evaluate(
        """() => [...document.querySelectorAll("body *")]
          .filter((one) => one.getBoundingClientRect().right > innerWidth + 1
            && !one.closest(".scroll"))
          .map((one) => one.outerHTML.slice(0, 200))"""
    )
    assert wide == []
    assert await tab.page.evaluate("document.documentElement.scrollWidth") <= NARROW


async def check_keyboard(tab: Tab) -> None:
    """Tab visits every control in the document's order, each in sight with an outline."""
    await tab.page.evaluate(NOTE_FOCUS, CONTROLS)
    count = await tab.page.locator(CONTROLS).count()
    for _ in range(count):
        await tab.page.keyboard.press("Tab")
    found = await tab.page.evaluate("window.visited")
    assert [one["number"] for one in found] == list(range(count))
    assert [one for one in found if not (one["outlined"] and one["seen"])] == []


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_is_accessible_at_any_width_and_complete_without_scripts(
    browser: Browser, desk: Desk, path: str
) -> None:
    async with open_tab(browser, desk, scripts=False) as tab:
        await tab.open(path)
        facts = await tab.page.evaluate(FACTS)
        assert len(facts) > 100
        assert tab.problems == []
    async with open_tab(browser, desk) as tab:
        await tab.open(path)
        assert await tab.page.evaluate(FACTS) == facts
        await check_keyboard(tab)
        assert tab.problems == []
        await check_accessible(tab)
        await check_narrow(tab)


async def test_many_gpus_are_as_accessible_as_few(browser: Browser) -> None:
    many = [
        gpu_node_manifest(f"n{n:03}", *(make_gpu(f"GPU-{n}-{i}", index=i) for i in range(8)))
        for n in range(TILES_MAX // 8 + 1)
    ]
    async with running_dashboard(nodes=many) as desk, open_tab(browser, desk) as tab:
        await tab.open("/gpus")
        await expect(tab.page.get_by_text("One mark a GPU")).to_be_visible()
        await check_keyboard(tab)
        assert tab.problems == []
        await check_accessible(tab)
        await check_narrow(tab)


async def test_a_missing_page_is_accessible(browser: Browser, desk: Desk) -> None:
    async with open_tab(browser, desk) as tab:
        await tab.open("/nothing", 404)
        # The browser's own message about the document.
        assert all("404 (Not Found)" in problem for problem in tab.problems)
        await check_keyboard(tab)
        await check_accessible(tab)
        await check_narrow(tab)


async def test_forms_and_pages_of_a_list_work_without_scripts(browser: Browser, desk: Desk) -> None:
    async with open_tab(browser, desk, scripts=False) as tab:
        page = tab.page
        await tab.open("/")
        await page.get_by_role("link", name="Waiting").click()
        await expect(page.get_by_role("link", name="team/waits-000")).to_be_visible()
        await page.get_by_role("link", name="after").click()
        await expect(page.get_by_role("link", name=f"team/waits-{ROWS_MAX:03}")).to_be_visible()
        await page.get_by_label("Name contains").fill("waits-007")
        await page.get_by_role("button", name="Filter").click()
        await expect(page.get_by_role("row")).to_have_count(2)
        await page.get_by_role("link", name="What if").click()
        await page.get_by_label("Add nodes").fill("n0=2")
        await page.get_by_label("How far").fill("1m")
        await page.get_by_role("button", name="Simulate").click()
        await expect(page.get_by_text("Nothing was written")).to_be_visible()
        assert tab.problems == []


async def test_a_change_of_a_job_shows_in_the_open_page(browser: Browser) -> None:
    async with running_dashboard(training("train")) as desk, open_tab(browser, desk) as tab:
        await tab.open("/")
        await live(tab.page)
        await tab.page.evaluate("window.kept = true")
        put(desk, training("newcomer"))
        await expect(tab.page.get_by_role("link", name="team/newcomer")).to_be_visible()
        await expect(tab.page.get_by_role("link", name="Running (2)")).to_be_visible()
        assert await tab.page.evaluate("window.kept"), "the page was loaded again"
        assert tab.problems == []


async def test_a_change_keeps_focus_entered_text_selection_and_scrolling(browser: Browser) -> None:
    async with running_dashboard(training("train")) as desk, open_tab(browser, desk) as tab:
        page = tab.page
        await tab.resize(NARROW)
        await tab.open("/")
        await live(page)
        link = page.get_by_role("link", name="team/train")
        await link.focus()
        await page.evaluate(
            """() => {
              document.querySelector("[name=queue]").value = "typed";
              document.querySelector("#jobs .scroll").scrollLeft = 77;
              getSelection().selectAllChildren(document.querySelector("tbody th a"));
            }"""
        )
        # It comes first in the list, so every row moves.
        put(desk, training("a-newcomer"))
        await expect(page.get_by_role("link", name="team/a-newcomer")).to_have_count(1)
        await expect(link).to_be_focused()
        assert await page.get_by_label("Queue").input_value() == "typed"
        assert await page.evaluate("document.querySelector('#jobs .scroll').scrollLeft") == 77
        put(desk, training("train", step=99))
        await page.get_by_label("Queue").focus()
        put(desk, training("b-newcomer"))
        await expect(page.get_by_role("link", name="team/b-newcomer")).to_have_count(1)
        await expect(page.get_by_label("Queue")).to_be_focused()


async def test_a_stream_that_is_cut_is_resumed(browser: Browser) -> None:
    async with running_dashboard(training("train")) as desk, open_tab(browser, desk) as tab:
        await tab.open("/")
        await live(tab.page)
        cut_connections(desk)
        await expect(tab.page.locator("#stream")).not_to_have_text("live")
        put(desk, training("newcomer"))
        await expect(tab.page.get_by_role("link", name="team/newcomer")).to_be_visible()
        await live(tab.page)


async def test_a_hostile_text_is_a_text(browser: Browser) -> None:
    hostile = [
        failed(make_job("ended", uid="ended"), HOSTILE),
        waiting(make_job("waits", uid="waits"), "ClaimNotFound", HOSTILE),
    ]
    node = gpu_node_manifest("n0", make_gpu("GPU-0", model=HOSTILE, healthy=False))
    node["status"]["gpus"][0]["healthMessage"] = HOSTILE
    # The API server refuses such a name, and the page does not rely on it.
    named = gpu_node_manifest("<img src=x onerror=alert(1)>", make_gpu("GPU-1"))
    async with (
        running_dashboard(*hostile, nodes=[node, named]) as desk,
        open_tab(browser, desk) as tab,
    ):
        for path in ("/", "/?status=failed", "/gpus", "/gpus/n0", "/health", "/job/team/ended"):
            await tab.open(path)
            await expect(tab.page.get_by_text("onerror=alert").first).to_be_attached()
            assert await tab.page.locator("main img, main script").count() == 0, path
            assert "\u202e" not in await tab.page.content()
        await tab.open("/?name=%22%3E%3Cscript%3Ealert(3)%3C/script%3E")
        await live(tab.page)
        put(desk, failed(make_job("later", uid="later"), HOSTILE))
        await expect(tab.page.get_by_role("link", name="team/later").first).to_be_visible()
        assert await tab.page.locator("main img, main script").count() == 0
        assert tab.problems == []


async def test_people_sign_in_and_out_in_the_browser(browser: Browser) -> None:
    users = {"token": ["team"]}
    async with (
        running_dashboard(training("train"), users=users) as desk,
        open_tab(browser, desk, token=None) as tab,
    ):
        page = tab.page
        await tab.open("/")
        await expect(page).to_have_url(f"{tab.origin}/login")
        await check_keyboard(tab)
        await check_accessible(tab)
        await check_narrow(tab)
        assert tab.problems == []
        await page.get_by_label("Your token").fill("wrong")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("alert")).to_contain_text("does not accept this token")
        await check_accessible(tab)
        await page.get_by_label("Your token").fill("token")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("link", name="team/train")).to_be_visible()
        await page.get_by_role("button", name="Sign out").click()
        await expect(page).to_have_url(f"{tab.origin}/login")
        await tab.open("/")
        await expect(page).to_have_url(f"{tab.origin}/login")


async def test_an_open_page_leaves_when_its_viewer_is_signed_out(browser: Browser) -> None:
    users = {"token": ["team"]}
    async with (
        running_dashboard(training("train"), users=users) as desk,
        open_tab(browser, desk, token="token") as tab,
    ):
        await tab.open("/")
        await live(tab.page)
        users.clear()
        desk.clock[0] += REST_SECONDS
        put(desk, training("newcomer"))
        await expect(tab.page).to_have_url(f"{tab.origin}/login")


async def test_a_page_without_a_session_leaves_when_its_stream_is_cut(browser: Browser) -> None:
    """As after a restart of the dashboard, which forgets its sessions."""
    async with running_dashboard(training("train")) as desk, open_tab(browser, desk) as tab:
        await tab.open("/")
        await live(tab.page)
        for cookie in await tab.page.context.cookies():
            desk.dashboard.sessions.end(cookie.get("value"))
        cut_connections(desk)
        await expect(tab.page).to_have_url(f"{tab.origin}/login")


async def test_a_hidden_page_has_no_stream(browser: Browser) -> None:
    async with running_dashboard(training("train")) as desk, open_tab(browser, desk) as tab:
        await tab.open("/")
        await live(tab.page)
        assert desk.dashboard.streams == 1
        await hide(tab.page, True)
        async with asyncio.timeout(20):
            while desk.dashboard.streams:
                # The server notices at its next write.
                put(desk, training("newcomer"))
                await asyncio.sleep(0.1)
        await hide(tab.page, False)
        await live(tab.page)
        put(desk, training("latecomer"))
        await expect(tab.page.get_by_role("link", name="team/latecomer")).to_be_visible()
        assert tab.problems == []


async def hide(page: Page, hidden: bool) -> None:
    """As the browser does for a tab in the background."""
    await page.evaluate(
        """(hidden) => {
          Object.defineProperty(document, "hidden", {configurable: true, get: () => hidden});
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


async def live(page: Page) -> None:
    await expect(page.locator("#stream")).to_have_text("live")


def put(desk: Desk, job: GPUJob) -> None:
    """Changes a job in the API, at a time at which pages may be rendered again."""
    desk.clock[0] += 2
    desk.api.put(JOBS, job_manifest(job))


def cut_connections(desk: Desk) -> None:
    """Ends all connections to the dashboard, as a restarted proxy does."""
    runner = desk.client.server.runner
    assert runner is not None
    assert runner.server is not None
    for one in runner.server.connections:
        assert one.transport is not None
        one.transport.abort()
