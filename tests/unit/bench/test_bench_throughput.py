"""The throughput benchmark: its figures are what they say, and what it submits is valid."""

import re
from dataclasses import replace

import pytest
import yaml

from bench.played_agents import PlayedNode
from bench.throughput import __main__ as throughput
from bench.throughput.agents import idle_gpus
from bench.throughput.calls import Calls, job_status, node_status
from bench.throughput.figures import (
    JobTimes,
    Outcome,
    Process,
    Takeover,
    difference,
    figure_rows,
    histogram_percentile,
    percentile,
    process_rows,
    read_series,
    total,
    write_rows,
    writes_by_kind,
)
from bench.throughput.kwok import node_manifest, node_names, stages
from bench.throughput.load import GPUJOBS, PLAIN_JOBS, Load, Run, gpujob_manifest
from bench.throughput.stack import OPERATOR_SERIES
from gpujob_api.codec import decode
from gpujob_api.gpunode import GPUNodeStatus
from gpujob_api.manifest import gpujob_from_manifest, gpunode_from_manifest
from gpujob_operator.client.kube import GPU_NODES, JOBS, PODS, Kube
from gpujob_operator.read.pods import pod_view
from tests.harness.fake_kube import FakeKube

TOTAL = "apiserver_request_total"
BEFORE = f"""\
# HELP {TOTAL} Counter of requests.
{TOTAL}{{code="201",dry_run="",resource="pods",subresource="",verb="POST"}} 10
{TOTAL}{{code="200",dry_run="",resource="gpujobs",subresource="status",verb="PATCH"}} 4
{TOTAL}_more{{verb="POST"}} 7
"""
AFTER = f"""\
{TOTAL}{{code="201",dry_run="",resource="pods",subresource="",verb="POST"}} 30
{TOTAL}{{code="409",dry_run="",resource="pods",subresource="",verb="POST"}} 1
{TOTAL}{{code="201",dry_run="All",resource="pods",subresource="",verb="POST"}} 2
{TOTAL}{{code="200",dry_run="",resource="gpujobs",subresource="status",verb="PATCH"}} 64
{TOTAL}{{code="200",dry_run="",resource="workloads",subresource="status",verb="APPLY"}} 3
{TOTAL}{{code="200",dry_run="",resource="pods",subresource="",verb="LIST"}} 99
"""


def test_writes_are_what_came_since_whatever_their_answer() -> None:
    before, after = read_series(BEFORE, [TOTAL]), read_series(AFTER, [TOTAL])
    found = writes_by_kind(difference(after, before))
    assert found == {"pods": 21, "pods (dry run)": 2, "gpujobs/status": 60, "workloads/status": 3}


def test_what_two_processes_counted_is_added() -> None:
    """The second began at 0 and has counted more than the first had at the beginning."""
    cycles, other = ("cycles", ()), ("other", ())
    both = total({cycles: 400.0}, {cycles: 500.0, other: 7.0})
    assert both == {cycles: 900.0, other: 7.0}
    assert difference(both, {cycles: 100.0}) == {cycles: 800.0, other: 7.0}


def test_a_counter_that_went_back_is_not_explained_away() -> None:
    key = ("count", ())
    assert difference({key: 5.0}, {key: 90.0}) == {key: -85.0}


def test_labels_may_hold_commas_and_quotes() -> None:
    found = read_series('one{a="b,c=\\"d\\"",e=""} 2e3', ["one"])
    assert found == {("one", (("a", 'b,c=\\"d\\"'), ("e", ""))): 2000.0}


@pytest.mark.parametrize(
    ("percent", "wanted"), [(50, 2.0), (51, 3.0), (99, 4.0), (100, 4.0), (1, 1.0)]
)
def test_percentiles(percent: float, wanted: float) -> None:
    assert percentile([4.0, 2.0, 1.0, 3.0], percent) == wanted
    assert percentile([], percent) is None


def test_a_histograms_percentile_is_the_bound_of_its_bucket() -> None:
    text = 'x_bucket{le="0.1"} 90\nx_bucket{le="1.0"} 99\nx_bucket{le="+Inf"} 100\n'
    series = read_series(text, ["x_bucket"])
    assert histogram_percentile(series, "x", 90) == 0.1
    assert histogram_percentile(series, "x", 99) == 1.0
    assert histogram_percentile({}, "x", 99) is None


def outcome(kind: str = "gpujobs", *, faster: float = 1.0) -> Outcome:
    jobs = {
        str(number): JobTimes(100.0 + number, 102.0 + number / faster, 104.0 + number)
        for number in range(4)
    }
    processes = {"kube-apiserver": Process(0.4, 300.0), "kwok": Process(9.0, 50.0)}
    text = (
        'gpujob_cycle_seconds_bucket{le="0.5"} 9\ngpujob_cycle_seconds_bucket{le="+Inf"} 10\n'
        "gpujob_cycle_seconds_count 10\ngpujob_cycle_seconds_sum 2\ngpujob_placements_total 6\n"
        'gpujob_writes_total{kind="WriteStatus",result="done"} 14\n'
        'gpujob_writes_total{kind="WriteStatus",result="conflict"} 5\n'
    )
    operator = read_series(text, OPERATOR_SERIES)
    return Outcome(kind, jobs, processes, {"pods": 8, "events": 4}, operator)


def test_the_row_of_an_outcome() -> None:
    row = outcome().row(frozenset({"kwok"}))
    assert row["complete"]
    assert row["bound_per_second"] == pytest.approx(4 / 5)
    assert row["succeeded_per_second"] == pytest.approx(4 / 7)
    assert (row["bound_seconds_median"], row["succeeded_seconds_p99"]) == (2.0, 4.0)
    assert row["stack_cpu_milliseconds"] == pytest.approx(100.0)
    assert row["cpu_milliseconds"]["kwok"] == pytest.approx(2250.0)
    assert (row["writes"], row["writes_by_kind"]["pods"]) == (3.0, 2.0)
    assert (row["cycles"], row["cycle_milliseconds_mean"]) == (10, 200.0)
    assert row["operator_writes_per_second"] == pytest.approx(14 / 7)
    assert row["placements_per_second"] == pytest.approx(6 / 5)
    shown = {row["figure"]: row for row in figure_rows([row])}
    assert shown["placements_per_second"]["gpujobs"] == row["placements_per_second"]


def test_a_job_that_did_not_end_is_told() -> None:
    jobs = {"a": JobTimes(0.0, 1.0, 2.0), "b": JobTimes(0.0, 1.0)}
    late = Outcome("jobs", jobs, {}, {}, problem="after 2 s: 1 succeeded of 2")
    row = late.row(frozenset())
    assert not row["complete"]
    assert (row["bound"], row["succeeded"]) == (2, 1)
    none = Outcome("jobs", {"a": JobTimes(0.0)}, {}, {}, problem="nothing").row(frozenset())
    assert none["bound_per_second"] is None
    unbound = replace(outcome(), jobs={"a": JobTimes(0.0)}).row(frozenset())
    assert unbound["placements_per_second"] is None
    cycles = {("gpujob_cycle_seconds_count", ()): 1.0, ("gpujob_cycle_seconds_sum", ()): 1.0}
    earlier = replace(outcome(), operator=cycles).row(frozenset())
    assert earlier["placements_per_second"] is None, "an operator that does not count them"


def test_both_kinds_stand_side_by_side() -> None:
    rows = [outcome().row(frozenset({"kwok"})), outcome("jobs").row(frozenset({"kwok"}))]
    (bound,) = (row for row in figure_rows(rows) if row["figure"] == "bound_per_second")
    assert bound["ratio"] == pytest.approx(1.0)
    assert [row["figure"] for row in write_rows(rows)] == ["pods", "events"]
    assert process_rows(rows)[0]["gpujobs_mib"] == 300.0


def test_the_takeover_is_a_figure_only_where_an_operator_was_killed() -> None:
    plain = outcome("jobs").row(frozenset())
    killed = replace(outcome(), takeover=Takeover(16.0, 16.5)).row(frozenset())
    shown = {row["figure"]: row for row in figure_rows([killed, plain])}
    assert shown["takeover_seconds"]["gpujobs"] == killed["takeover_seconds"] == 16.0
    assert shown["first_cycle_seconds"]["gpujobs"] == killed["first_cycle_seconds"] == 16.5
    assert shown["takeover_seconds"]["jobs"] is None
    assert "operator_writes_per_second" in shown
    names = {row["figure"] for row in figure_rows([outcome().row(frozenset()), plain])}
    assert names.isdisjoint({"takeover_seconds", "first_cycle_seconds"})


def test_a_gang_is_bound_with_its_last_pod() -> None:
    run = Run(object.__new__(Kube), PLAIN_JOBS, Load(1, workers=2), "space")
    run.times["a"] = JobTimes(0.0)

    def pod(name: str, node: str | None) -> dict[str, object]:
        labels = {PLAIN_JOBS.pod_label: "a"}
        return {"metadata": {"name": name, "labels": labels}, "spec": {"nodeName": node}}

    run.pod_came(pod("a-0", "node"), 1.0)
    assert run.times["a"].created is None
    run.pod_came(pod("a-1", None), 2.0)
    run.pod_came(pod("a-0", "node"), 3.0)
    assert run.times["a"].bound is None
    run.pod_came(pod("a-1", "node"), 4.0)
    run.pod_came(pod("b-0", "node"), 5.0)
    run.job_came({"metadata": {"name": "a"}, "status": {"conditions": []}}, 6.0)
    assert run.times["a"] == JobTimes(0.0, 4.0, created=2.0, seen=6.0)
    complete = {"conditions": [{"type": "Complete", "status": "True"}]}
    run.job_came({"metadata": {"name": "a"}, "status": complete}, 7.0)
    run.job_came({"metadata": {"name": "a"}, "status": complete}, 8.0)
    assert run.times["a"] == JobTimes(0.0, 4.0, 7.0, created=2.0, seen=6.0)
    assert GPUJOBS.succeeded({"status": {"phase": "Succeeded"}})
    assert not GPUJOBS.succeeded({})


def test_what_is_submitted_can_be_read() -> None:
    manifest = gpujob_manifest("a", 8)
    manifest["metadata"] |= {"namespace": "space", "uid": "u", "resourceVersion": "1"}
    assert gpujob_from_manifest(manifest).spec.workers == 8
    assert PLAIN_JOBS.manifest("a", 8)["spec"]["completions"] == 8
    assert len({gpu.uuid for gpu in idle_gpus("node-0001", 8)}) == 8
    assert node_manifest(node_names(2)[1], 8)["status"]["allocatable"]["nvidia.com/gpu"] == "8"


def test_the_played_states_are_valid_yaml() -> None:
    """kwok fills in the time and the containers; the rest must be YAML as it stands."""
    phases: list[str] = []
    for stage in stages():
        (patch,) = stage["spec"]["next"].get("patches", [{"template": "{}"}])
        template = str(patch["template"])
        for text in ("{{ $now := Now }}", "{{ range .spec.containers }}", "{{ end }}"):
            template = template.replace(text, "")
        state = yaml.safe_load(re.sub(r"\{\{.*?\}\}", '"x"', template))
        if state:
            # kwok changes nothing of a pod that somebody changed since.
            assert ".metadata.resourceVersion" in patch["template"]
            assert state["metadata"].keys() == {"resourceVersion"}
            phases.append(state["status"]["phase"])
            (container,) = state["status"]["containerStatuses"]
            assert len(container["state"]) == 1
    assert phases == ["Running", "Succeeded"]


def test_options() -> None:
    options = throughput.parse(["--arrive", "10/s", "--kinds", "gpujobs"])
    assert (options.arrive, options.kinds, options.jobs) == (10.0, ["gpujobs"], 300)
    assert throughput.parse([]).kinds == ["jobs", "gpujobs"]
    every = throughput.parse(["--kinds", "jobs,kueue,gpujobs"]).kinds
    assert every == ["jobs", "kueue", "gpujobs"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--jobs", "0"],
        ["--arrive", "0"],
        ["--kinds", "pods"],
        ["--kinds", "jobs,jobs"],
        ["--gangs", "x"],
    ],
)
def test_bad_options_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        throughput.parse(arguments)
    assert arguments[0] in capsys.readouterr().err


async def test_a_create_without_an_answer_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.throughput.load.RETRY_SECONDS", 0.0)
    kube = FakeKube()
    kube.fail("create", JOBS.plural, after_effect=True)
    run = Run(kube, GPUJOBS, Load(1), "space")
    await run._create("a")
    assert run.times.keys() == {"a"}
    assert [call.verb for call in kube.calls] == ["create", "create"]


@pytest.mark.parametrize("way", ["replace_status", "merge_patch_status"])
async def test_a_written_status_changes_each_time_and_is_one_of_ours(way: str) -> None:
    kube = FakeKube()
    job = kube.put(
        JOBS, gpujob_manifest("a", 1) | {"metadata": {"name": "a", "namespace": "calls"}}
    )
    made = Calls(kube, kube, [job])
    for phase in ("Running", "Starting", "Running"):
        before = made.jobs[0]["metadata"]["resourceVersion"]
        await getattr(made, way)(0)
        assert made.jobs[0]["status"]["phase"] == phase
        assert made.jobs[0]["metadata"]["resourceVersion"] != before
    read = gpujob_from_manifest(made.jobs[0]).status
    assert read == job_status(runs=True)


@pytest.mark.parametrize("way", ["replace_node_status", "merge_patch_node_status"])
async def test_a_written_node_status_changes_each_time_and_is_whole(way: str) -> None:
    kube = FakeKube()
    nodes = [kube.put(GPU_NODES, {"metadata": {"name": name}, "spec": {}}) for name in "ab"]
    made = Calls(kube, kube, [], nodes)
    for number in (0, 1, 2):
        before = made.nodes[number % 2]["metadata"]["resourceVersion"]
        await getattr(made, way)(number)
        manifest = made.nodes[number % 2]
        assert manifest["metadata"]["resourceVersion"] != before
        assert manifest == kube.stored(GPU_NODES, "ab"[number % 2])
        status = gpunode_from_manifest({**manifest, "kind": "GPUNode"}).status
        assert len(status.gpus) == 8
        assert sum(bool(gpu.processes) for gpu in status.gpus) == 4
    verbs = {call.verb for call in kube.writes()}
    assert verbs == {"replace" if way.startswith("replace") else "patch"}


def test_the_figures_of_a_node_are_others_each_time() -> None:
    first, second = (decode(GPUNodeStatus, node_status(PlayedNode("a", 8)), "s") for _ in range(2))
    assert first.gpus != second.gpus
    assert first.observed_at != second.observed_at


async def test_a_created_pod_is_the_operators_with_its_record() -> None:
    kube = FakeKube()
    job = kube.put(
        JOBS, gpujob_manifest("a", 1) | {"metadata": {"name": "a", "namespace": "calls"}}
    )
    made = Calls(kube, kube, [job])
    for _ in range(2):
        await made.create_pod(0)
    assert kube.names(PODS) == ["a-1-0", "a-2-0"]
    pod = pod_view(kube.stored(PODS, "a-2-0", "calls"))
    assert pod.record is not None
    assert (pod.attempt, pod.record.placement.workers[0].node) == (2, "node-0001")
