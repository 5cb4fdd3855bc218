"""The pages show what the cluster has, to those who may see it."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobFailure, JobPhase, Reservation, ReservationSource
from gpujob_api.gpuservice import ServiceSummary, Traffic
from gpujob_api.meta import Condition, ConditionStatus
from gpujob_api.quantities import GIB
from gpujob_api.report import FailureClass
from gpujob_api.start_range import StartRange
from gpujob_dashboard.history import History
from gpujob_dashboard.pages.contents import ROWS_MAX, NoSuchPage, cut, link
from gpujob_dashboard.pages.gpus import TILES_MAX, gpus_page, node_page
from gpujob_dashboard.pages.health import health_page
from gpujob_dashboard.pages.job import job_page
from gpujob_dashboard.pages.now import STALE, attention, now_page
from gpujob_dashboard.pages.queues import queue_page, queues_page
from gpujob_dashboard.pages.services import services_page
from gpujob_dashboard.rendering import sections_of
from gpujob_dashboard.rights import ALL, Rights
from tests.harness.builders import (
    CARD_BYTES,
    T0,
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_queue,
    measured,
    placed,
    reserve,
    running,
    with_status,
)
from tests.harness.dashboard import html_of, make_state, services_of, two_teams, waiting

ZEBRA = Rights(frozenset({"team-zebra"}), nodes=True, queues=True)
NOBODY = Rights(frozenset(), nodes=False, queues=False)


def failed(job: GPUJob, at: float) -> GPUJob:
    failure = JobFailure(FailureClass.DATA, "label 1001 is out of range")
    return with_status(
        job, phase=JobPhase.FAILED, failure=failure, finished_at=after(at), observed_generation=1
    )


def test_an_empty_cluster_says_how_to_begin() -> None:
    state = make_state()
    assert "kubectl gpujob submit" in html_of(now_page(state, ALL, {}))
    assert "kubectl gpujob doctor" in html_of(gpus_page(state, ALL, {}))
    assert "No job waits" in html_of(queue_page(state, ALL, "default", {}))
    assert "No agent has written a GPUNode" in html_of(health_page(state, ALL, {}))


def test_the_first_page_counts_gpus_and_jobs() -> None:
    state = two_teams()
    html = html_of(now_page(state, ALL, {}))
    assert "<dd>1 of 2<small>" in html
    assert "<dd>2<small>2 waiting</small></dd>" in html
    for title in ("Running (2)", "Waiting (2)", "Suspended (2)", "Failed (2)", "Succeeded (0)"):
        assert title in html


@pytest.mark.parametrize(
    ("query", "shown", "hidden"),
    [
        ({"status": "waiting"}, "team-zebra/zebra-waits", "zebra-runs"),
        ({"status": "running", "namespace": "team-quokka"}, "quokka-runs", "zebra-runs"),
        ({"name": "ZEBRA"}, "zebra-runs", "quokka-runs"),
        ({"queue": "other"}, "matches the filter", "zebra-runs"),
        ({"status": "nonsense"}, "zebra-runs", "zebra-waits"),
    ],
)
def test_jobs_are_chosen_by_the_address(query: dict[str, str], shown: str, hidden: str) -> None:
    html = sections_of(now_page(two_teams(), ALL, query))["jobs"]
    assert shown in html
    assert hidden not in html


def test_the_oldest_waiting_job_is_one_that_the_viewer_may_see() -> None:
    old = waiting(make_job("old", namespace="team-quokka", uid="o"), "InsufficientCapacity", "x")
    new = waiting(
        make_job("new", namespace="team-zebra", uid="n", created=30, priority=5),
        "InsufficientCapacity", "x",
    )  # fmt: skip
    state = make_state(old, new)
    for rights, name in ((ALL, "team-quokka/old"), (ZEBRA, "team-zebra/new")):
        html = sections_of(now_page(state, rights, {}))["figures"]
        assert f"<small>{name}: InsufficientCapacity</small>" in html


def test_a_long_list_is_cut_into_pages() -> None:
    jobs = [running(make_job(f"job-{n:03}", uid=f"u{n}")) for n in range(2 * ROWS_MAX + 1)]
    state = make_state(*jobs)
    first = html_of(now_page(state, ALL, {"status": "running"}))
    assert "job-000" in first
    assert f"job-{ROWS_MAX:03}" not in first
    assert f"1 to {ROWS_MAX} of {2 * ROWS_MAX + 1}" in first
    last = html_of(now_page(state, ALL, {"status": "running", "page": "99"}))
    assert f"job-{2 * ROWS_MAX:03}" in last
    assert 'rel="next"' not in last


@pytest.mark.parametrize("page", ["", "0", "-1", "x", "٣", "1e9", "9" * 30])
def test_any_page_number_is_a_page(page: str) -> None:
    rows = cut(list(range(120)), {"page": page}, "/")
    assert rows.rows
    assert rows.total == 120


def test_links_keep_the_other_parts_of_an_address() -> None:
    assert link("/", {"queue": "a b", "page": "2"}, page="") == "/?queue=a+b"
    assert link("/", {}) == "/"


def test_what_needs_a_person_comes_with_the_next_step() -> None:
    sick = make_gpu_node("n1", make_gpu("GPU-1", healthy=False))
    silent = make_gpu_node("n2", make_gpu("GPU-2"), at=-STALE.total_seconds())
    blocked = waiting(make_job("blocked", uid="b"), "ClaimNotFound", "claim x does not exist")
    patient = waiting(make_job("patient", uid="p"), "InsufficientCapacity", "no room")
    ended = failed(make_job("ended", uid="e"), 30)
    old = failed(make_job("old", uid="o"), -timedelta(days=2).total_seconds())
    state = make_state(blocked, patient, ended, old, nodes=(sick, silent))
    found = {item.name: item for item in attention(state.groups.seen(None), state, ALL)}
    assert set(found) == {"n1", "n2", "team/blocked", "team/ended"}
    assert "XID 79" in found["n1"].text
    assert "no readings since" in found["n2"].text
    assert "kubectl get pvc" in found["team/blocked"].next
    assert "label 1001" in found["team/ended"].text
    assert "rerun ended" in found["team/ended"].next


def test_a_job_that_would_lose_everything_on_a_spot_node_needs_a_person() -> None:
    condition = Condition(
        type="Unprotected", status=ConditionStatus.TRUE, reason="NoClaim", message="no claim",
        last_transition_time=T0, observed_generation=1,
    )  # fmt: skip
    job = running(make_job("risky"), conditions=(condition,))
    assert job.status.placement is not None
    on_spot = with_status(
        job, placement=type(job.status.placement)(job.status.placement.workers, spot=True)
    )
    for one, names in ((job, []), (on_spot, ["team/risky"])):
        state = make_state(one)
        assert [item.name for item in attention(state.groups.seen(None), state, ALL)] == names


def test_an_operator_that_does_not_answer_is_seen() -> None:
    new = make_job("new", generation=2, created=-120)
    assert "has not answered" in html_of(now_page(make_state(new), ALL, {}))
    html = html_of(health_page(make_state(new), ALL, {}))
    assert "1 of 1 jobs have had no answer" in html
    young = make_job("young", generation=2, created=30)
    assert "no answer" not in html_of(health_page(make_state(young), ALL, {}))


def test_the_map_shows_each_part_of_a_gpus_memory() -> None:
    job = placed(
        make_job("half"), ("n0", ("GPU-0",)), held=reserve(CARD_BYTES // 2), phase=JobPhase.RUNNING
    )
    other = placed(
        make_job("other", namespace="team-quokka", uid="o"), ("n0", ("GPU-0",)),
        held=reserve(CARD_BYTES // 4), phase=JobPhase.RUNNING,
    )  # fmt: skip
    gpu = make_gpu("GPU-0", driver=CARD_BYTES // 16, unmanaged=CARD_BYTES // 16)
    state = make_state(job, other, nodes=(make_gpu_node("n0", gpu),))
    rights = Rights(frozenset({"team"}))
    page = gpus_page(state, rights, {})
    [row] = page.sections["map"].values["rows"]
    bars = [(bar.kind, bar.start, bar.width) for bar in row.tiles[0].bars]
    assert bars == [
        ("driver", 0.0, 6.2), ("job", 6.2, 50.0), ("other", 56.2, 25.0), ("unmanaged", 81.2, 6.2)
    ]  # fmt: skip
    assert "team-quokka" not in html_of(page)
    assert "team/half reserves" in html_of(page)


def test_bars_never_leave_the_gpu() -> None:
    jobs = [
        placed(
            make_job(f"j{n}", uid=f"u{n}"), ("n0", ("GPU-0",)), held=reserve(20 * GIB),
            phase=JobPhase.RUNNING,
        )
        for n in range(3)
    ]  # fmt: skip
    state = make_state(*jobs, nodes=(make_gpu_node("n0", make_gpu("GPU-0")),))
    [row] = gpus_page(state, ALL, {}).sections["map"].values["rows"]
    assert sum(bar.width for bar in row.tiles[0].bars) <= 100.0


@pytest.mark.parametrize(
    ("held", "healthy", "kind"),
    [
        (None, True, "free"),
        (reserve(GIB), True, "shared"),
        (reserve(CARD_BYTES, ReservationSource.WHOLE_GPU, exclusive=True), True, "whole"),
        (reserve(GIB), False, "unhealthy"),
    ],
)
def test_a_tile_shows_the_state_of_its_gpu(
    held: Reservation | None, healthy: bool, kind: str
) -> None:
    jobs = [placed(make_job("j"), held=held, phase=JobPhase.RUNNING)] if held else []
    node = make_gpu_node("n0", make_gpu("GPU-0", healthy=healthy))
    page = gpus_page(make_state(*jobs, nodes=(node,)), ALL, {})
    [row] = page.sections["map"].values["rows"]
    assert row.tiles[0].kind == kind


def test_many_gpus_are_small_marks() -> None:
    nodes = [
        make_gpu_node(f"n{n:03}", *(make_gpu(f"GPU-{n}-{i}", index=i) for i in range(8)))
        for n in range(TILES_MAX // 8 + 1)
    ]
    html = html_of(gpus_page(make_state(nodes=nodes), ALL, {}))
    assert "One mark a GPU" in html
    assert html.count("<a href") == len(nodes)


def test_gpus_are_chosen_by_model_and_node() -> None:
    nodes = (
        make_gpu_node("a-1", make_gpu("GPU-1", model="NVIDIA H100")),
        make_gpu_node("b-1", make_gpu("GPU-2", model="NVIDIA A10")),
    )
    state = make_state(nodes=nodes)
    by_model = html_of(gpus_page(state, ALL, {"model": "NVIDIA H100"}))
    by_node = html_of(gpus_page(state, ALL, {"node": "B-"}))
    assert "a-1" in by_model
    assert "b-1" not in by_model
    assert "b-1" in by_node
    assert "a-1" not in by_node


def test_a_node_has_a_page_with_its_gpus_and_their_last_day() -> None:
    history = History()
    for minute in range(3):
        history.note([make_gpu_node("n0", make_gpu("GPU-0", unmanaged=GIB), at=60.0 * minute)])
    job = placed(make_job("half"), ("n0", ("GPU-0",)), held=reserve(GIB), phase=JobPhase.RUNNING)
    state = make_state(job, nodes=(make_gpu_node("n0", make_gpu("GPU-0", unmanaged=GIB)),))
    html = html_of(node_page(state, ALL, "n0", history))
    assert '<a href="/job/team/half">' in html
    assert "1 GiB of unmanaged processes" in html
    assert "memory over 3 readings" in html
    with pytest.raises(NoSuchPage):
        node_page(state, ALL, "n9", history)
    with pytest.raises(NoSuchPage):
        node_page(state, NOBODY, "n0", history)


def test_queues_are_listed_with_the_one_that_has_no_object() -> None:
    html = html_of(queues_page(make_state(queues=(make_queue("research", gpus=4),)), ALL, {}))
    assert "/queues/research" in html
    assert "/queues/default" in html


def test_a_queue_shows_its_order_and_of_others_only_the_size() -> None:
    page = queue_page(two_teams(), ZEBRA, "default", {})
    html = html_of(page)
    assert "2 jobs wait: 2 InsufficientCapacity" in html
    assert "team-zebra/zebra-waits" in html
    assert "a job of another namespace" in html
    assert "quokka" not in html


def test_a_queue_follows_the_planner_and_then_priority_and_age() -> None:
    def waits(name: str, position: int | None, team: str = "team-zebra", **fields: Any) -> GPUJob:
        place = f"; position {position} of the jobs waiting for GPUs" if position else ""
        job = make_job(name, namespace=team, uid=name, **fields)
        return waiting(job, "InsufficientCapacity", f"no GPU{place}; could start in 5 s")

    state = make_state(
        waits("unknown-old", None),
        waits("unknown-first", None, priority=9),
        waits("tenth", 10, priority=9),
        waits("second", 2),
        waits("theirs", 3, "team-quokka"),
        make_job("new", namespace="team-zebra", uid="new", created=5),
    )
    rows = queue_page(state, ZEBRA, "default", {}).sections["queue"].values["rows"]
    found = [(row["place"], row["position"], row["name"].rpartition("/")[2]) for row in rows]
    assert found == [
        (1, 2, "second"), (2, 3, ""), (3, 10, "tenth"), (4, None, "unknown-first"),
        (5, None, "unknown-old"), (6, None, "new"),
    ]  # fmt: skip
    html = html_of(queue_page(state, ZEBRA, "default", {}))
    assert '<td class="number">4</td><td class="number">-</td>' in html
    assert "theirs" not in html


def test_a_queue_without_positions_is_in_order_of_priority_and_age() -> None:
    jobs = [
        make_job("old", uid="a"), make_job("young", uid="b", created=5),
        make_job("urgent", uid="c", created=9, priority=1),
    ]  # fmt: skip
    page = queue_page(make_state(*jobs), ALL, "default", {})
    names = [row["name"] for row in page.sections["queue"].values["rows"]]
    assert names == ["team/urgent", "team/old", "team/young"]


def test_a_pending_job_shows_when_it_is_expected_to_start() -> None:
    expected = StartRange(earliest=after(600), latest=after(1200), computed_at=after(30))
    job = waiting(make_job("patient"), "InsufficientCapacity", "no room")
    state = make_state(with_status(job, start=expected))
    for page in (
        now_page(state, ALL, {"status": "waiting"}),
        queue_page(state, ALL, "default", {}),
        job_page(state, ALL, "team", "patient"),
    ):
        assert "00:10 - 00:20" in html_of(page)
    later = make_state(with_status(job, start=expected), at=1500)
    assert "00:10" not in html_of(queue_page(later, ALL, "default", {}))


def test_pages_that_may_not_be_read_name_the_right_that_is_missing() -> None:
    state = two_teams()
    assert "gpunodes.gpujob.dev" in html_of(gpus_page(state, NOBODY, {}))
    assert "gpuqueues.gpujob.dev" in html_of(queues_page(state, NOBODY, {}))
    with pytest.raises(NoSuchPage):
        queue_page(state, NOBODY, "default", {})
    assert "agents" not in health_page(state, NOBODY, {}).sections


def test_a_service_is_a_row_that_leads_to_its_jobs() -> None:
    [service] = services_of("zebra")
    traffic = Traffic(requests_per_second=12.5, within_objective_percent=None, latency=None)
    summary = ServiceSummary("1/2", "Compile bfloat16", "p99 8 ms", "x-1: no GPU has 8 GiB")
    service = replace(service, status=replace(service.status, traffic=traffic, summary=summary))
    html = html_of(services_page(make_state(services=[service]), ALL, {}))
    for cell in ("1/2", "Compile bfloat16", "12.5", "p99 8 ms", "x-1: no GPU has 8 GiB"):
        assert f">{cell}</td>" in html
    assert 'href="/?namespace=team-zebra&amp;name=zebra-answers-">team-zebra/zebra-answers<' in html


def test_without_services_the_page_has_the_command_that_creates_one() -> None:
    hidden = make_state(services=services_of("quokka"))
    for state, rights in ((make_state(), ALL), (hidden, replace(ALL, services=frozenset()))):
        html = html_of(services_page(state, rights, {}))
        assert "There is no GPUService that you may list" in html
        assert "examples/serve-digits.yaml" in html


def test_a_long_list_of_services_is_cut_into_pages() -> None:
    state = make_state(services=services_of(*(f"{number:03}" for number in range(ROWS_MAX + 1))))
    first = html_of(services_page(state, ALL, {}))
    assert f"1 to {ROWS_MAX} of {ROWS_MAX + 1}" in first
    assert f"{ROWS_MAX:03}-answers" not in first
    assert f"{ROWS_MAX:03}-answers" in html_of(services_page(state, ALL, {"page": "2"}))


def test_a_job_page_has_reasons_report_and_commands() -> None:
    job = running(make_job("train"), measurement=measured(GIB, step=10), observed_at=after(50))
    html = html_of(job_page(make_state(job), ALL, "team", "train"))
    assert "kubectl gpujob logs train -n team -f" in html
    assert "/job/team/train/yaml" in html
    assert "step 10" in html


@pytest.mark.parametrize("name", ["missing", "quokka-runs"])
def test_a_hidden_job_and_a_missing_one_look_alike(name: str) -> None:
    with pytest.raises(NoSuchPage) as error:
        job_page(two_teams(), ZEBRA, "team-quokka", name)
    assert str(error.value) == f"there is no job team-quokka/{name} that you may see"


def test_a_source_that_cannot_be_read_is_named() -> None:
    html = html_of(health_page(make_state(problem="gpujobs is forbidden"), ALL, {}))
    assert html.count("gpujobs is forbidden") == 4
