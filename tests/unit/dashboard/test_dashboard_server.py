"""Signing in and out, the headers, and what a stream sends."""

import asyncio
import json
from contextlib import AsyncExitStack

import pytest
from aiohttp import ClientResponse

from gpujob_api.gpujob import JobPhase, SharingMode
from gpujob_dashboard.rights import REVIEW_SECONDS
from gpujob_dashboard.server import REST_SECONDS
from gpujob_dashboard.sessions import ATTEMPTS_MAX, COOKIE, SESSION_SECONDS, SESSIONS_MAX, Sessions
from gpujob_operator.client.kube import CLAIMS, JOBS, ResourceType
from tests.harness.builders import after, make_job, running, with_status
from tests.harness.dashboard import Desk, running_dashboard
from tests.harness.manifests import job_manifest

TOKEN_REVIEWS = ResourceType("authentication.k8s.io", "v1", "tokenreviews", False)
PAGES = ("/", "/gpus", "/gpus/n0", "/queues", "/queues/default", "/services", "/health", "/what-if")


async def event_of(stream: ClientResponse, name: str) -> str:
    """The data of the next event of this name."""
    while True:
        block = (await stream.content.readuntil(b"\n\n")).decode()
        lines = dict(line.split(": ", 1) for line in block.strip().splitlines())
        if lines.get("event") == name:
            return lines["data"]


async def test_the_address_that_was_printed_works_once() -> None:
    async with running_dashboard(make_job("train")) as desk:
        await desk.get("/", 303)
        await desk.get("/login?code=wrong")
        await desk.get("/login?code=once", 303)
        assert "train" in await desk.get("/?status=waiting")
        desk.client.session.cookie_jar.clear()
        text = await desk.get("/login?code=once")
        assert "works once" in text
        await desk.get("/", 303)


async def test_every_page_forbids_what_is_not_its_own() -> None:
    async with running_dashboard(make_job("train")) as desk:
        await desk.get("/login?code=once", 303)
        for path in (*PAGES, "/job/team/train", "/nothing", "/login", "/static/live.js"):
            async with desk.client.get(path) as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy, path
                assert "unsafe" not in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                text = await answer.text()
            assert "style=" not in text, path
            assert "onclick" not in text
            assert "http://" not in text.replace("http://www.w3.org", "")
            assert "https://" not in text


async def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites() -> None:
    async with running_dashboard(users={"token": ["*"]}) as desk:
        origin = {"Origin": f"http://{desk.client.host}:{desk.client.port}"}
        data = {"token": "token"}
        async with desk.client.post(
            "/login", data=data, headers=origin, allow_redirects=False
        ) as answer:
            cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert "token" not in cookie.partition(";")[0].partition("=")[2]
        named = {**origin, "Host": "gpus.example"}
        named["Origin"] = "http://gpus.example"
        async with desk.client.post(
            "/login", data=data, headers=named, allow_redirects=False
        ) as answer:
            assert "Secure" in answer.headers["Set-Cookie"]


@pytest.mark.parametrize("origin", [None, "http://evil.example", "null"])
async def test_a_form_of_another_site_is_refused(origin: str | None) -> None:
    async with running_dashboard(users={"token": ["*"]}) as desk:
        headers = {"Origin": origin} if origin else {}
        async with desk.client.post("/login", data={"token": "token"}, headers=headers) as answer:
            assert answer.status == 403
            assert "Set-Cookie" not in answer.headers


async def test_a_local_page_answers_under_its_own_name_alone() -> None:
    async with running_dashboard() as desk:
        desk.dashboard.hosts = frozenset({"127.0.0.1"})
        await desk.get("/login")
        await desk.get("/login", 403, headers={"Host": "rebound.example:80"})


@pytest.mark.parametrize("token", ["", "unknown", "x" * 20_000])
async def test_a_token_that_is_not_accepted_is_no_session(token: str) -> None:
    async with running_dashboard(users={"token": ["*"]}) as desk:
        await desk.sign_in(token, 403)
        await desk.get("/", 303)


async def test_signing_out_ends_the_session_for_good() -> None:
    async with running_dashboard(users={"token": ["*"]}) as desk:
        await desk.sign_in("token")
        cookies = {
            one.key: one.value for one in desk.client.session.cookie_jar if one.key == COOKIE
        }
        await desk.get("/")
        origin = {"Origin": f"http://{desk.client.host}:{desk.client.port}"}
        await desk.client.post("/logout", headers=origin, allow_redirects=False)
        await desk.get("/", 303)
        await desk.get("/", 303, cookies=cookies)


async def test_attempts_to_sign_in_are_limited() -> None:
    async with running_dashboard(users={"token": ["*"]}) as desk:
        for _ in range(ATTEMPTS_MAX):
            await desk.sign_in("wrong", 403)
        await desk.sign_in("token", 429)
        desk.clock[0] += 61
        await desk.sign_in("token")


async def test_a_revoked_token_closes_the_stream() -> None:
    users = {"token": ["*"]}
    async with running_dashboard(running(make_job("train")), users=users) as desk:
        await desk.sign_in("token")
        async with desk.client.get("/stream", params={"page": "/"}) as stream:
            assert "train" in await event_of(stream, "sections")
            users.clear()
            desk.clock[0] += REST_SECONDS
            _touch(desk)
            async with asyncio.timeout(10):
                await event_of(stream, "signed-out")
                assert await stream.content.read() == b""
        await desk.get("/", 303)
        await desk.get("/login")


async def test_a_stream_without_a_session_says_so() -> None:
    async with (
        running_dashboard() as desk,
        desk.client.get("/stream", params={"page": "/"}) as stream,
    ):
        assert stream.content_type == "text/event-stream"
        await event_of(stream, "signed-out")


async def test_a_browser_names_the_origin_of_a_form() -> None:
    """With another policy it sends the origin "null", which is refused."""
    users = {"token": ["*"]}
    async with running_dashboard(users=users) as desk, desk.client.get("/login") as answer:
        assert answer.headers["Referrer-Policy"] == "same-origin"


async def test_rights_that_are_lost_hide_jobs_on_an_open_page() -> None:
    users = {"token": ["team", "team-quokka"]}
    jobs = [
        running(make_job("mine")),
        running(make_job("theirs", namespace="team-quokka", uid="t")),
    ]
    async with running_dashboard(*jobs, users=users) as desk:
        await desk.sign_in("token")
        async with desk.client.get("/stream", params={"page": "/"}) as stream:
            assert "theirs" in await event_of(stream, "sections")
            users["token"] = ["team"]
            desk.clock[0] += max(REST_SECONDS, REVIEW_SECONDS) + 1
            _touch(desk)
            async with asyncio.timeout(10):
                text = await event_of(stream, "sections")
            assert "mine" in text
            assert "theirs" not in text


async def test_a_change_reaches_an_open_page_as_the_section_that_changed() -> None:
    async with running_dashboard(running(make_job("train"))) as desk:
        await desk.get("/login?code=once", 303)
        async with desk.client.get("/stream", params={"page": "/"}) as stream:
            first = json.loads(await event_of(stream, "sections"))
            assert set(first) == {"figures", "attention", "jobs"}
            desk.clock[0] += 5
            desk.api.put(JOBS, job_manifest(running(make_job("another", uid="a"))))
            async with asyncio.timeout(10):
                second = json.loads(await event_of(stream, "sections"))
            assert "another" in second["jobs"]
            assert "attention" not in second


async def test_viewers_of_a_page_share_its_timer_and_all_get_a_change() -> None:
    async with running_dashboard(running(make_job("train"))) as desk, AsyncExitStack() as opened:
        await desk.get("/login?code=once", 303)
        streams = [
            await opened.enter_async_context(desk.client.get("/stream", params={"page": "/"}))
            for _ in range(5)
        ]
        for stream in streams:
            await event_of(stream, "sections")
        assert len(_timers()) == 1
        desk.clock[0] += 5
        desk.api.put(JOBS, job_manifest(running(make_job("another", uid="a"))))
        async with asyncio.timeout(10):
            for stream in streams:
                assert "another" in await event_of(stream, "sections")
        assert len(_timers()) == 1


def _timers() -> list[str]:
    """The tasks that wait until a page may be rendered again."""
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    return [name for name in names if name.endswith("._expire")]


async def test_a_page_that_vanishes_says_so() -> None:
    async with running_dashboard(running(make_job("train"))) as desk:
        await desk.get("/login?code=once", 303)
        async with desk.client.get("/stream", params={"page": "/job/team/train"}) as stream:
            await event_of(stream, "sections")
            desk.clock[0] += 5
            desk.api.remove(JOBS, "train", "team")
            async with asyncio.timeout(10):
                await event_of(stream, "gone")


async def test_yaml_is_the_object_without_the_names_of_its_writers() -> None:
    async with running_dashboard(make_job("train")) as desk:
        await desk.get("/login?code=once", 303)
        text = await desk.get("/job/team/train/yaml")
        assert "name: train" in text
        assert "managedFields" not in text


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("add=n0%3D2", "Nothing was written"),
        ("add=nonsense", "must be NODE=COUNT"),
        ("without=n7", "--without-node"),
        ("quota=x.gpus%3D3", "does not exist"),
        ("horizon=soon", "horizon: must be such as"),
        ("job=team/train", "Placed"),
        ("job=team/train&memory=10Gi", "spec.gpu.memory: none -&gt; 10Gi"),
        ("job=team/train&priority=-5", "spec.priority: 0 -&gt; -5"),
        ("job=team/train&slowdown=20", "spec.sharing.maxSlowdownPercent: 10 -&gt; 20"),
        ("job=team/train&priority=5&add=n0%3D2", "what-if train -n team --priority 5 --add-nodes"),
        ("job=team/train&memory=lots", "--memory: must be a quantity"),
        ("job=team/train&priority=high", "--priority: must be a whole number; got 'high'"),
        ("job=team/train&slowdown=101", "--max-slowdown: must be from 0 to 100; got 101"),
        ("memory=10Gi", "--memory needs a JOB"),
        ("job=team/&priority=1", "--priority needs a JOB"),
        ("job=train&priority=1", "not found: gpujob train in namespace default"),
    ],
)
async def test_what_if_answers_or_names_the_field(query: str, words: str) -> None:
    async with running_dashboard(make_job("train", claim=None)) as desk:
        await desk.get("/login?code=once", 303)
        assert words in (await desk.get(f"/what-if?{query}")).replace("&#39;", "'")


async def test_what_if_shows_both_outcomes_of_a_job_and_what_changes_for_others() -> None:
    jobs = [
        make_job(name, created=created, claim=None, sharing=SharingMode.EXCLUSIVE)
        for created, name in enumerate(("first", "train"))
    ]
    async with running_dashboard(*jobs) as desk:
        await desk.get("/login?code=once", 303)
        text = await desk.get("/what-if?job=team/train&priority=5&slowdown=20")
    assert "what-if train -n team --priority 5 --max-slowdown 20 --horizon 24h" in text
    own, others = text.split("What changes for others")
    before, after_it = own.split("After</th>")
    assert "Not placed within" in before
    assert "Placed at once" in after_it
    assert "team/first" in others


@pytest.mark.parametrize(
    ("there", "readable", "named"), [((), True, True), (("mine",), True, False), ((), False, False)]
)
async def test_what_if_names_a_claim_that_does_not_exist(
    there: tuple[str, ...], readable: bool, named: bool
) -> None:
    async with running_dashboard(make_job("train", claim="mine")) as desk:
        for name in there:
            desk.api.put(CLAIMS, {"metadata": {"name": name, "namespace": "team"}})
        desk.api.forbid = lambda path: not readable and "persistentvolumeclaims" in path
        await desk.get("/login?code=once", 303)
        text = await desk.get("/what-if?horizon=1h")
    assert "Nothing was written" in text
    words = "persistentvolumeclaim &#34;mine&#34; does not exist in the namespace team"
    assert (words in text) is named


async def test_a_finished_job_is_not_changed() -> None:
    ended = with_status(make_job("train"), phase=JobPhase.SUCCEEDED, finished_at=after(1))
    async with running_dashboard(ended) as desk:
        await desk.get("/login?code=once", 303)
        text = await desk.get("/what-if?job=team/train&priority=5")
        assert "gpujob train has finished" in text


async def test_what_if_needs_the_right_to_see_all() -> None:
    async with running_dashboard(make_job("train"), users={"token": ["team"]}) as desk:
        await desk.sign_in("token")
        for query in ("add=n0%3D2", "job=team/train&priority=5", "job=other/secret&priority=5"):
            text = await desk.get(f"/what-if?{query}")
            assert "needs the right to list" in text
            assert "Nothing was written" not in text
            assert "not found" not in text


async def test_an_api_server_that_fails_is_a_page_with_its_words() -> None:
    async with running_dashboard(users={"token": ["*"]}) as desk:
        await desk.sign_in("token")
        desk.api.fail(TOKEN_REVIEWS, status=500, body=b"etcd is away")
        desk.clock[0] += REVIEW_SECONDS + 1
        assert "etcd is away" in await desk.get("/", 502)


def test_sessions_end_with_time_and_the_oldest_when_there_are_too_many() -> None:
    now = [0.0]
    sessions = Sessions(lambda: now[0])
    first = sessions.begin("token")
    assert sessions.token(first) == "token"
    for _ in range(SESSIONS_MAX - 1):
        sessions.begin("token")
    assert sessions.token(first) == "token"
    last = sessions.begin("token")
    assert sessions.token(first) is None
    assert sessions.token(last) == "token"
    now[0] = SESSION_SECONDS
    assert sessions.token(last) is None
    assert sessions.token(None) is None
    sessions.end(None)


def _touch(desk: Desk) -> None:
    """Any change, after which streams look again."""
    desk.api.put(JOBS, job_manifest(make_job("touched", uid="touched")))
