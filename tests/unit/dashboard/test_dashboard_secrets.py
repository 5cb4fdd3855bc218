"""No byte that a viewer gets has the names of jobs that they may not list."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujob_api.gpujob import GPUJob, JobFailure, JobPhase
from gpujob_api.gpuservice import ServiceSummary
from gpujob_api.report import FailureClass
from gpujob_dashboard.history import History
from gpujob_dashboard.pages.contents import NoSuchPage, Page
from gpujob_dashboard.pages.gpus import gpus_page, node_page
from gpujob_dashboard.pages.health import health_page
from gpujob_dashboard.pages.job import job_page
from gpujob_dashboard.pages.now import now_page
from gpujob_dashboard.pages.queues import queue_page, queues_page
from gpujob_dashboard.pages.services import services_page
from gpujob_dashboard.rights import ALL, Rights
from gpujob_dashboard.watched import State
from tests.harness.builders import after, make_gpu, make_gpu_node, make_job, with_status
from tests.harness.dashboard import (
    html_of,
    make_state,
    running_dashboard,
    services_of,
    two_teams,
)

ZEBRA = Rights(frozenset({"team-zebra"}), services=frozenset({"team-zebra"}))
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "\u202egnp.exe",
    "{{ 7 * 7 }}",
    "a" * 253,
    "\x1b[31mred",
)


def pages(state: State, rights: Rights, query: Mapping[str, str]) -> dict[str, Page]:
    """Every page that the viewer may see, by name."""
    makers: dict[str, Callable[[], Page]] = {
        "now": lambda: now_page(state, rights, query),
        "gpus": lambda: gpus_page(state, rights, query),
        "node": lambda: node_page(state, rights, "n0", History()),
        "queues": lambda: queues_page(state, rights, query),
        "queue": lambda: queue_page(state, rights, "default", query),
        "services": lambda: services_page(state, rights, query),
        "health": lambda: health_page(state, rights, query),
        **{f"job {job.metadata.key}": _job_maker(state, rights, job) for job in state.jobs},
    }
    found: dict[str, Page] = {}
    for name, maker in makers.items():
        try:
            found[name] = maker()
        except NoSuchPage:
            continue
    return found


def _job_maker(state: State, rights: Rights, job: GPUJob) -> Callable[[], Page]:
    return lambda: job_page(state, rights, job.metadata.namespace, job.metadata.name)


@given(
    viewer=st.sampled_from(["zebra", "quokka"]),
    nodes=st.booleans(),
    queues_too=st.booleans(),
    status=st.sampled_from(["running", "waiting", "suspended", "failed", "succeeded"]),
)
def test_no_page_has_the_others_names(
    viewer: str, nodes: bool, queues_too: bool, status: str
) -> None:
    other = {"zebra": "quokka", "quokka": "zebra"}[viewer]
    own = frozenset({f"team-{viewer}"})
    rights = Rights(own, nodes, queues_too, own)
    found = pages(two_teams(), rights, {"status": status})
    assert f"job team-{viewer}/{viewer}-runs" in found
    assert f"job team-{other}/{other}-runs" not in found
    assert f"team-{viewer}/{viewer}-answers" in html_of(found["services"])
    for name, page in found.items():
        assert other not in html_of(page), name


@pytest.mark.parametrize("name", ["", "quokka"])
def test_a_filter_by_the_others_namespace_finds_and_counts_nothing(name: str) -> None:
    query = {"namespace": "team-quokka", "name": name}
    values = now_page(two_teams(), ZEBRA, query).sections["jobs"].values
    assert values["rows"] == []
    assert [count for _, count, _, _ in values["groups"]] == [0] * 5
    own = now_page(two_teams(), ZEBRA, {"namespace": "team-zebra"}).sections["jobs"].values
    assert [count for _, count, _, _ in own["groups"]] == [1, 1, 1, 1, 0]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_is_shown_as_text(text: str) -> None:
    failure = JobFailure(FailureClass.DATA, text)
    ended = with_status(make_job("j"), phase=JobPhase.FAILED, failure=failure, finished_at=after(1))
    node = make_gpu_node("n0", make_gpu("GPU-0", model=text[:100]))
    [service] = services_of("zebra")
    summary = ServiceSummary(text[:16], text, text, text)
    service = replace(service, status=replace(service.status, summary=summary))
    state = make_state(ended, nodes=(node,), services=[service])
    found = pages(state, ALL, {"status": "failed", "name": text, "model": text})
    assert len(found) == 8
    for name, page in found.items():
        html = html_of(page)
        for forbidden in ("<script", "<img", "\u202e", "\x1b", "49 }}", 'src=x"'):
            assert forbidden not in html, name


async def test_two_users_get_their_own_pages_and_streams_alone() -> None:
    state = two_teams()
    users = {"token-zebra": ["team-zebra"], "token-quokka": ["team-quokka"], "token-admin": ["*"]}
    services = services_of("zebra", "quokka")
    async with running_dashboard(*state.jobs, services=services, users=users) as desk:
        for viewer, other in (("zebra", "quokka"), ("quokka", "zebra")):
            desk.client.session.cookie_jar.clear()
            await desk.sign_in(f"token-{viewer}")
            for path in (
                "/",
                "/?status=waiting",
                "/?status=failed",
                "/queues",
                "/services",
                "/health",
            ):
                text = await desk.get(path)
                assert other not in text, path
            assert f"team-{viewer}/{viewer}-answers" in await desk.get("/services")
            assert f"{viewer}-runs" in await desk.get("/")
            await desk.get(f"/job/team-{viewer}/{viewer}-runs")
            for path in ("", "/yaml"):
                text = await desk.get(f"/job/team-{other}/{other}-runs{path}", 404)
            async with desk.client.get("/stream", params={"page": "/"}) as stream:
                sent = await stream.content.readuntil(b"\n\n")
                sent += await stream.content.readuntil(b"\n\n")
            assert f"{viewer}-runs".encode() in sent
            assert other.encode() not in sent
        desk.client.session.cookie_jar.clear()
        await desk.sign_in("token-admin")
        text = await desk.get("/")
        assert "zebra-runs" in text
        assert "quokka-runs" in text
