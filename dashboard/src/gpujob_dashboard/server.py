"""The HTTP server: pages, their streams, signing in and out. It writes nothing to the cluster."""

import asyncio
import hmac
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import yaml
from aiohttp import web

from gpujob_api.manifest import GPUJOB
from gpujob_dashboard import rendering
from gpujob_dashboard.api_server import APIServer, APIServerError
from gpujob_dashboard.history import History
from gpujob_dashboard.listing import missing_claims, read_observation
from gpujob_dashboard.pages import what_if
from gpujob_dashboard.pages.contents import NoSuchPage, Page, Query
from gpujob_dashboard.pages.gpus import gpus_page, node_page
from gpujob_dashboard.pages.health import health_page
from gpujob_dashboard.pages.job import job_page
from gpujob_dashboard.pages.now import now_page
from gpujob_dashboard.pages.queues import queue_page, queues_page
from gpujob_dashboard.pages.services import services_page
from gpujob_dashboard.rights import ALL, Reviews, Rights
from gpujob_dashboard.sessions import COOKIE, Sessions
from gpujob_dashboard.watched import OURS, Watched, state_of
from gpujob_operator.garbage import collect_later, collect_regularly, spare_later
from kubectl_gpujob.errors import UserError

# A page is rendered at most this often for all of its viewers together.
RENDER_SECONDS = 1.0
# Without a change it is rendered again after this time, because readings become stale.
REST_SECONDS = 15.0
RENDERED_MAX = 256
# Events of a rendered page that are kept.
EVENTS_MAX = 8
STREAMS_MAX = 2000
HISTORY_SECONDS = 60.0
_SIGNED_OUT = b"event: signed-out\ndata: {}\n\n"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    # Not "no-referrer", with which browsers send forms with the origin "null".
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(slots=True, eq=False)
class Rendered:
    """The sections of a page as of a revision, rendered at a time of the monotonic clock."""

    page: Page
    sections: Mapping[str, str]
    revision: int
    at: float
    # Time as of which the cluster was known, for people.
    current: str
    number: int = field(default_factory=itertools.count(1).__next__)
    # Waits until the page may be rendered again, once for all of its viewers.
    expiry: "asyncio.Task[None] | None" = None
    # By the number of the sections that a viewer has.
    _events: dict[int, bytes] = field(default_factory=dict[int, bytes])

    def event(self, sent: "Rendered | None") -> bytes:
        """Returns the events for viewers who have the sections of `sent`: how current the page is,
        and the sections that changed.

        Most of them have the same, so they are made once.
        """
        before = sent.number if sent is not None else 0
        if before not in self._events:
            known = sent.sections if sent is not None else {}
            changed = {key: text for key, text in self.sections.items() if known.get(key) != text}
            lines = f"event: current\ndata: {self.current}\n\n"
            if changed:
                lines += f"event: sections\nid: {self.revision}\ndata: {json.dumps(changed)}\n\n"
            while len(self._events) >= EVENTS_MAX:
                del self._events[next(iter(self._events))]
            self._events[before] = lines.encode()
        return self._events[before]


@dataclass(slots=True)
class Dashboard:
    """The server. With `reviews`, viewers sign in with their tokens; without, by `code` once."""

    server: APIServer
    watched: Watched
    reviews: Reviews | None = None
    code: str = ""
    # The names under which browsers may reach it; empty for any, behind an ingress.
    hosts: frozenset[str] = frozenset()
    configuration: Path | None = None
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    seconds: Callable[[], float] = time.monotonic
    history: History = field(default_factory=History)
    sessions: Sessions = field(init=False)
    _rendered: dict[tuple[Rights, str], Rendered] = field(default_factory=dict)
    _simulating: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    # The number of open streams.
    streams: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.sessions = Sessions(self.seconds)

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=64 * 1024)
        app.router.add_get("/healthz", _healthz)
        app.router.add_get("/static/{name}", _static)
        app.router.add_get("/login", self._login_form)
        app.router.add_post("/login", self._login)
        app.router.add_post("/logout", self._logout)
        app.router.add_get("/stream", self._stream)
        app.router.add_get("/what-if", self._what_if)
        app.router.add_get("/job/{namespace}/{name}/yaml", self._yaml)
        app.router.add_get("/{path:.*}", self._page)
        return app

    async def run(self) -> None:
        """Follows the cluster and takes readings until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.watched.run())
            group.create_task(self._take_readings())

    async def _take_readings(self) -> None:
        while True:
            self.history.note(self.watched.nodes.objects.values())
            await asyncio.sleep(HISTORY_SECONDS)

    # -- who it is

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Refuses other hosts, which is how a foreign page would reach a local one, and adds
        the headers that forbid a browser to load or run anything of others.
        """
        if self.hosts and request.host.rpartition(":")[0] not in self.hosts:
            answer: web.StreamResponse = web.Response(status=403, text="unknown host\n")
        elif request.method == "POST" and not _is_own(request):
            answer = web.Response(status=403, text="a form of another site\n")
        else:
            try:
                answer = await handler(request)
            except web.HTTPException as error:
                error.headers.update(_HEADERS)
                raise
            except APIServerError as error:
                answer = self._problem(502, "The API server did not answer", error.message)
        if not answer.prepared:
            answer.headers.update(_HEADERS)
        return answer

    async def _rights(self, request: web.Request) -> Rights:
        """Returns the rights of the viewer. Raises the redirection to the form to sign in."""
        session = request.cookies.get(COOKIE)
        token = self.sessions.token(session)
        if token is not None:
            found = await self._reviewed(token)
            if found is not None:
                return found
            # Or the form to sign in would send its viewer back here.
            self.sessions.end(session)
        raise web.HTTPSeeOther("/login")

    async def _reviewed(self, token: str) -> Rights | None:
        if self.reviews is None:
            return ALL
        served = {namespace for namespace, _ in self.watched.services.objects}
        found = await self.reviews.rights(token, self.watched.groups.namespaces, served)
        return found[1] if found is not None else None

    async def _login_form(self, request: web.Request) -> web.Response:
        if self.sessions.token(request.cookies.get(COOKIE)) is not None:
            return web.Response(status=303, headers={"Location": "/"})
        code = request.query.get("code", "")
        if self.reviews is None and self.code and hmac.compare_digest(code, self.code):
            # The code is of use once.
            self.code = ""
            return self._signed_in(request, "local")
        return self._login_page("", 200)

    async def _login(self, request: web.Request) -> web.Response:
        form = await request.post()
        token = str(form.get("token", "")).strip()
        if not self.sessions.may_attempt():
            return self._login_page("Too many attempts; wait a minute.", 429)
        if self.reviews is None or not token or len(token) > 16_384:
            return self._login_page("The token is not accepted.", 403)
        if await self.reviews.viewer(token) is None:
            return self._login_page("The API server does not accept this token.", 403)
        return self._signed_in(request, token)

    def _signed_in(self, request: web.Request, token: str) -> web.Response:
        answer = web.Response(status=303, headers={"Location": "/"})
        name = request.host.rpartition(":")[0] or request.host
        answer.set_cookie(
            COOKIE, self.sessions.begin(token), httponly=True, samesite="Strict", path="/",
            secure=name not in ("localhost", "127.0.0.1", "[::1]"),
        )  # fmt: skip
        return answer

    async def _logout(self, request: web.Request) -> web.Response:
        self.sessions.end(request.cookies.get(COOKIE))
        answer = web.Response(status=303, headers={"Location": "/login"})
        answer.del_cookie(COOKIE, path="/")
        return answer

    def _login_page(self, problem: str, status: int) -> web.Response:
        local = self.reviews is None
        return _html(rendering.document("login.html", problem=problem, local=local), status)

    # -- pages

    async def _page(self, request: web.Request) -> web.Response:
        rights = await self._rights(request)
        address = request.path_qs
        try:
            rendered = self._render(rights, address)
        except NoSuchPage as error:
            return self._problem(404, "Not found", str(error))
        return self._document(rendered.page, rendered.sections, address)

    def _document(self, page: Page, sections: Mapping[str, str], stream: str) -> web.Response:
        text = rendering.document(
            "page.html",
            title=page.title,
            place=page.place,
            sections=sections,
            stream=stream,
            current_at=self.watched.current_at,
            problems=[f"{one.name}: {one.problem}" for one in self.watched.kinds if one.problem],
            can_sign_out=self.reviews is not None,
        )
        return _html(text)

    def _problem(self, status: int, title: str, text: str) -> web.Response:
        return _html(rendering.document("problem.html", title=title, text=text), status)

    def _render(self, rights: Rights, address: str) -> Rendered:
        """Renders a page once for all viewers with the same rights. Raises `NoSuchPage`."""
        key, now = (rights, address), self.seconds()
        known = self._rendered.pop(key, None)
        if known is None or not self._holds(known, now):
            page, current = self._page_at(rights, address), self.watched.current_at
            known = Rendered(
                page,
                rendering.sections_of(page),
                self.watched.revision,
                now,
                current.isoformat(timespec="seconds") if current is not None else "",
            )
        self._rendered[key] = known
        while len(self._rendered) > RENDERED_MAX:
            del self._rendered[next(iter(self._rendered))]
        return known

    def _holds(self, known: Rendered, now: float) -> bool:
        if known.revision == self.watched.revision:
            return now - known.at < REST_SECONDS
        return now - known.at < RENDER_SECONDS

    def _page_at(self, rights: Rights, address: str) -> Page:
        parts = urlsplit(address)
        path = [unquote(part) for part in parts.path.split("/") if part]
        query: Query = dict(parse_qsl(parts.query))
        state = state_of(self.watched, self.now())
        match path:
            case []:
                return now_page(state, rights, query)
            case ["gpus"]:
                return gpus_page(state, rights, query)
            case ["gpus", name]:
                return node_page(state, rights, name, self.history)
            case ["queues"]:
                return queues_page(state, rights, query)
            case ["queues", name]:
                return queue_page(state, rights, name, query)
            case ["services"]:
                return services_page(state, rights, query)
            case ["job", namespace, name]:
                return job_page(state, rights, namespace, name)
            case ["health"]:
                return health_page(state, rights, query)
            case _:
                raise NoSuchPage(f"there is no page {parts.path}")

    async def _yaml(self, request: web.Request) -> web.Response:
        rights = await self._rights(request)
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        job = self.watched.jobs.objects.get((namespace, name))
        if job is None or not rights.may_see(job):
            return self._problem(404, "Not found", f"there is no job {namespace}/{name}")
        path = f"{OURS}/namespaces/{namespace}/{GPUJOB.plural}/{name}"
        item = dict(await self.server.get(path))
        item.get("metadata", {}).pop("managedFields", None)
        text = yaml.safe_dump(item, sort_keys=False, allow_unicode=True)
        return web.Response(text=text, content_type="text/plain", charset="utf-8")

    async def _what_if(self, request: web.Request) -> web.Response:
        rights = await self._rights(request)
        may_ask = rights.all_jobs and rights.nodes and rights.queues
        change, found = what_if.entered(request.query), None
        if change is not None and may_ask:
            found = await self._simulated(change)
        page = what_if.what_if_page(change, found, may_ask)
        return self._document(page, rendering.sections_of(page), "")

    async def _simulated(self, change: what_if.WhatIf) -> Mapping[str, Any]:
        async with self._simulating:
            try:
                observed = await read_observation(self.server, self.now(), self.configuration)
            except (APIServerError, UserError) as error:
                return {"problem": f"the cluster cannot be read: {error}"}
            found = await asyncio.to_thread(what_if.answer, observed, change)
            warnings = await missing_claims(self.server, found.get("claims", ()))
            return {**found, "warnings": warnings}

    # -- streams

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Sends the sections of a page that change, at most once a second."""
        try:
            rights = await self._rights(request)
        except web.HTTPSeeOther:
            # A stream cannot follow to the form to sign in. The page does.
            return web.Response(body=_SIGNED_OUT, content_type="text/event-stream")
        address = request.query.get("page", "/")
        if self.streams >= STREAMS_MAX:
            return web.Response(status=503, text=f"{STREAMS_MAX} pages are open\n")
        answer = web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/event-stream"})
        await answer.prepare(request)
        self.streams += 1
        try:
            # A reader may go at any time.
            with suppress(ConnectionError):
                await self._follow(request, answer, rights, address)
        except NoSuchPage:
            await answer.write(b"event: gone\ndata: {}\n\n")
        finally:
            self.streams -= 1
        return answer

    async def _follow(
        self, request: web.Request, answer: web.StreamResponse, rights: Rights, address: str
    ) -> None:
        session = request.cookies.get(COOKIE)
        sent: Rendered | None = None
        reviewed = self.seconds()
        while True:
            if self.seconds() - reviewed >= REST_SECONDS:
                token = self.sessions.token(session)
                found = await self._reviewed(token) if token is not None else None
                if found is None:
                    await answer.write(_SIGNED_OUT)
                    return
                rights, reviewed = found, self.seconds()
            rendered = self._render(rights, address)
            await answer.write(rendered.event(sent))
            sent = rendered
            # All viewers of a page continue when it may be rendered again, so none gets an old one.
            # They share one timer, because two for each of them would cost as much as its events.
            if rendered.expiry is None or rendered.expiry.done():
                rendered.expiry = asyncio.create_task(self._expire(rendered))
            await asyncio.wait([rendered.expiry])

    async def _expire(self, rendered: Rendered) -> None:
        await asyncio.sleep(max(rendered.at + RENDER_SECONDS - self.seconds(), 0.0))
        await self.watched.next_revision(rendered.revision, REST_SECONDS - RENDER_SECONDS)


async def _spare_once_read(watched: Watched) -> None:
    while watched.current_at is None:
        await watched.next_revision(watched.revision, 1)
    spare_later()


def _is_own(request: web.Request) -> bool:
    """Returns whether a form comes from this site's own page."""
    origin = request.headers.get("Origin")
    return origin is not None and urlsplit(origin).netloc == request.host


def _html(text: str, status: int = 200) -> web.Response:
    answer = web.Response(text=text, status=status, content_type="text/html", charset="utf-8")
    answer.enable_compression()
    return answer


async def _healthz(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def _static(request: web.Request) -> web.Response:
    name = request.match_info["name"]
    kind = rendering.STATIC.get(name)
    if kind is None:
        raise web.HTTPNotFound
    return web.Response(body=rendering.static_file(name), content_type=kind)


async def serve(dashboard: Dashboard, host: str, port: int, ready: Callable[[int], None]) -> None:
    """Serves until cancelled. `ready` gets the port once it listens.

    Garbage collection of the whole process is set up for a cluster of which every object stays.
    """
    collect_later()
    runner = web.AppRunner(dashboard.application(), access_log=None, shutdown_timeout=2)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    try:
        await site.start()
        ready(runner.addresses[0][1])
        async with asyncio.TaskGroup() as group:
            group.create_task(dashboard.run())
            group.create_task(_spare_once_read(dashboard.watched))
            group.create_task(collect_regularly())
    finally:
        with suppress(asyncio.CancelledError):
            await runner.cleanup()
