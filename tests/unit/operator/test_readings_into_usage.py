"""Agent readings become use by attempt; absurd ones are dropped and counted (I14)."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpujob_api.gpunode import GPU, GPUNode, GPUProcess
from gpujob_api.quantities import GIB, MIB
from gpujob_operator.decide.model.held_gpus import CONTEXT_BYTES
from gpujob_operator.decide.model.snapshot import GPUUsage, InvalidJob, PodView, SeenGPUs
from gpujob_operator.observe.freshness import DELAYS_MAX, Freshness
from gpujob_operator.observe.usage import READINGS_PER_STATUS_MAX, MeasuredUsage
from gpujob_operator.read.nouns import read_gpu_node, read_job, written_at
from tests.harness.builders import T0, make_gpu, make_gpu_node, make_job, make_pod, placed
from tests.harness.clocks import START
from tests.harness.manifests import gpu_node_manifest, job_manifest

pytestmark = pytest.mark.promise("I14")

JOB = placed(make_job())
POD = make_pod(JOB)
KEY = ("uid-job", 1)
PODS = {POD.uid: POD}


def _find(uid: str) -> PodView | None:
    return PODS.get(uid)


def _node(*gpus: GPU, at: float) -> GPUNode:
    return make_gpu_node("n0", *gpus, at=at)


def _ours(memory: int, utilization: float | None = None, *, busy: float = 0.0) -> GPU:
    gpu = make_gpu(ours=[(POD.uid, memory)])
    process = replace(gpu.processes[0], utilization_percent=utilization)
    return replace(gpu, processes=(process,), utilization_percent=busy)


def _use(usage: MeasuredUsage) -> GPUUsage:
    return usage.usage()[KEY]


def test_peak_is_the_worst_moment_of_the_worst_gpu() -> None:
    usage = MeasuredUsage()
    other = replace(_ours(5 * GIB), uuid="GPU-1", index=1)
    assert usage.observe(_node(_ours(1 * GIB), other, at=0), _find)
    usage.observe(_node(_ours(3 * GIB), replace(other, processes=()), at=2), _find)
    usage.observe(_node(_ours(2 * GIB), at=4), _find)
    assert _use(usage).memory_peak_bytes == 5 * GIB
    assert _use(usage).samples == 3


def test_where_a_worker_was_seen_is_that_of_the_newest_reading() -> None:
    usage = MeasuredUsage()
    other = replace(_ours(5 * GIB), uuid="GPU-1", index=1)
    usage.observe(_node(_ours(1 * GIB), other, at=0), _find)
    assert _use(usage).seen == (SeenGPUs(0, ("GPU-0", "GPU-1")),)
    usage.observe(_node(make_gpu(), other, at=2), _find)
    assert _use(usage).seen == (SeenGPUs(0, ("GPU-1",)),)


def test_processes_of_one_pod_on_a_gpu_add_up() -> None:
    usage = MeasuredUsage()
    gpu = make_gpu(ours=[(POD.uid, GIB), (POD.uid, 2 * GIB)], unmanaged=4 * GIB)
    usage.observe(_node(gpu, at=0), _find)
    assert _use(usage).memory_peak_bytes == 3 * GIB


def test_contexts_are_those_of_the_most_processes_on_one_gpu() -> None:
    usage = MeasuredUsage()
    one, two = [(POD.uid, GIB)], [(POD.uid, GIB), (POD.uid, 100 * MIB)]
    usage.observe(_node(make_gpu(ours=one), at=0), _find)
    assert _use(usage).context_bytes == CONTEXT_BYTES
    other = make_gpu("GPU-1", ours=one, index=1)
    usage.observe(_node(make_gpu(ours=two, unmanaged=GIB), other, at=2), _find)
    usage.observe(_node(make_gpu(ours=one), other, at=4), _find)
    assert _use(usage).context_bytes == CONTEXT_BYTES + 100 * MIB


@pytest.mark.parametrize(("gap_seconds", "samples"), [(2, 2), (6, 4), (10, 6), (600, 6), (0.5, 2)])
def test_a_status_stands_for_the_readings_since_the_last(gap_seconds: float, samples: int) -> None:
    """The agent writes only what changed; a long gap is silence and not readings."""
    usage = MeasuredUsage()
    usage.observe(_node(_ours(GIB), at=0), _find)
    usage.observe(_node(_ours(GIB), at=gap_seconds), _find)
    assert _use(usage).samples == samples <= 1 + READINGS_PER_STATUS_MAX


def test_the_same_reading_counts_once() -> None:
    usage = MeasuredUsage()
    assert usage.observe(_node(_ours(GIB), at=0), _find)
    assert not usage.observe(_node(_ours(GIB), at=0), _find)
    assert _use(usage).samples == 1


def _observed(
    percents: Sequence[float],
    *,
    ready_from: int = 0,
    settled_from: int | None = None,
    serves: bool = False,
    beside: int | None = None,
) -> GPUUsage:
    """Returns the use after a reading each 2 s, of a pod that is ready from one of them on.

    `settled_from` is the reading before which its reports settled, and `beside` the one with
    another process on the GPU.
    """
    usage = MeasuredUsage()
    for number, percent in enumerate(percents):
        if number == settled_from:
            usage.settled(KEY, serves=serves)
        pod = replace(POD, ready=number >= ready_from)
        gpu = _ours(GIB, percent, busy=percent)
        if number == beside:
            other = make_gpu(unmanaged=GIB).processes
            gpu = replace(gpu, processes=(*gpu.processes, *other), memory_used_bytes=2 * GIB)
        usage.observe(_node(gpu, at=2 * number), {pod.uid: pod}.get)
    return _use(usage)


@pytest.mark.parametrize("words", [{"ready_from": 9}, {"settled_from": 9}, {"settled_from": 3}])
def test_the_start_up_does_not_count(words: dict[str, Any]) -> None:
    """The first reading after it may still show its end."""
    before = [100.0] * max(words.values())
    begun = _observed([*before, 100.0], **words)
    assert (begun.utilization_percent, begun.samples) == (100, len(before)), "a short job ends now"
    assert begun.is_of_start_up
    for samples in (1, 2, 3):
        found = _observed([*before, 100.0, *[4.0] * samples], **words)
        assert (found.utilization_percent, found.samples) == (4, samples)
        assert found.may_fall, "it replaces the figure of the start-up"
        assert not found.is_of_start_up


def test_reports_show_the_end_of_the_start_up_better_than_the_pod() -> None:
    """A training is ready as soon as its container runs."""
    loading, first_steps, training = [0.0] * 20, [100.0] * 10, [12.0] * 10
    found = _observed([*loading, *first_steps, *training], ready_from=1, settled_from=29)
    assert found.utilization_percent == 12
    assert found.samples == 10
    later = _observed([*training, *training], settled_from=2, ready_from=12)
    assert later.samples == 17, "a pod that becomes ready later begins nothing anew"


def test_the_peak_of_the_memory_is_that_of_the_whole_attempt() -> None:
    usage = MeasuredUsage()
    usage.observe(_node(_ours(9 * GIB), at=0), _find)
    usage.settled(KEY, serves=False)
    usage.observe(_node(_ours(GIB), at=2), _find)
    assert _use(usage).memory_peak_bytes == 9 * GIB


def test_utilization_rises_within_half_a_minute_and_falls_after_five() -> None:
    quiet = [2.0] * 100
    assert _observed([*quiet, *[80.0] * 30]).utilization_percent == pytest.approx(80, abs=11)
    pause = _observed([*quiet, *[80.0] * 100, *[2.0] * 110])
    assert pause.utilization_percent > 75, "less than four minutes of pause"
    over = _observed([*quiet, *[80.0] * 100, *[2.0] * 190])
    assert over.utilization_percent < 15, "more than six"


@pytest.mark.parametrize(
    ("readings", "words", "may_fall"),
    [
        (149, {}, False),
        (150, {}, True),
        (150, {"beside": 0}, False),
        (151, {"beside": 0}, True),
        (200, {"beside": 60}, False),
        (300, {"beside": 60}, True),
        # The share of a service depends on its requests.
        (200, {"beside": 60, "settled_from": 1, "serves": True}, True),
        (150, {"settled_from": 1}, False),
        (152, {"settled_from": 1}, True),
    ],
)
def test_it_may_fall_after_minutes_in_which_nothing_slowed_the_job(
    readings: int, words: dict[str, Any], may_fall: bool
) -> None:
    assert _observed([5.0] * readings, **words).may_fall is may_fall


def test_the_utilization_is_that_of_the_busiest_gpu() -> None:
    usage = MeasuredUsage()
    for second in range(0, 20, 2):
        other = replace(_ours(GIB, busy=70.0), uuid="GPU-1", index=1)
        usage.observe(_node(_ours(GIB, busy=5.0), other, at=second), _find)
    assert _use(usage).utilization_percent == 70


def test_a_gpu_of_the_start_up_alone_does_not_keep_the_figure_up() -> None:
    usage = MeasuredUsage()
    other = replace(_ours(GIB, busy=90.0), uuid="GPU-1", index=1)
    usage.observe(_node(_ours(GIB, busy=9.0), other, at=0), _find)
    usage.settled(KEY, serves=False)
    for second in range(2, 400, 2):
        usage.observe(_node(_ours(GIB, busy=9.0), at=second), _find)
    assert _use(usage).may_fall
    assert _use(usage).utilization_percent == 9


def test_an_attempt_without_readings_settles_later() -> None:
    usage = MeasuredUsage()
    usage.settled(KEY, serves=False)
    assert usage.usage() == {}
    usage.observe(_node(_ours(GIB, busy=9.0), at=0), _find)
    assert _use(usage).samples == 1


def test_beside_others_only_the_own_utilization_counts() -> None:
    usage = MeasuredUsage()
    gpu = replace(make_gpu(ours=[(POD.uid, GIB)], unmanaged=GIB), utilization_percent=95.0)
    mine, unmanaged = gpu.processes
    gpu = replace(gpu, processes=(replace(mine, utilization_percent=20.0), unmanaged))
    usage.observe(_node(gpu, at=0), _find)
    assert _use(usage).utilization_percent == 20


def test_where_the_driver_cannot_tell_the_gpus_figure_is_the_bound() -> None:
    usage = MeasuredUsage()
    gpu = make_gpu(ours=[(POD.uid, GIB)], unmanaged=GIB)
    usage.observe(_node(replace(gpu, utilization_percent=95.0), at=0), _find)
    assert _use(usage).utilization_percent == 95


def test_unmanaged_processes_belong_to_no_job() -> None:
    usage = MeasuredUsage()
    assert not usage.observe(_node(make_gpu(ours=[("unknown", GIB)]), at=0), _find)
    assert usage.usage() == {}


def test_forgets_what_is_gone() -> None:
    usage = MeasuredUsage()
    usage.observe(_node(_ours(GIB), at=0), _find)
    usage.keep_only({("uid-other", 1)}, {"n0"})
    assert usage.usage() == {}


def _drop(manifest: dict[str, Any]) -> tuple[GPUNode, Sequence[str]]:
    dropped: list[str] = []
    return read_gpu_node(manifest, dropped.append), dropped


@pytest.mark.parametrize(
    "change",
    [
        {"memoryUsedBytes": -1},
        {"memoryUsedBytes": 10**15},
        {"memoryTotalBytes": 0},
        {"utilizationPercent": 1e308},
        {"utilizationPercent": float("nan")},
        {"utilizationPercent": float("inf")},
        {"utilizationPercent": "high"},
        {"uuid": "GPU one"},
        {"uuid": None},
        {"index": []},
    ],
)
def test_an_absurd_gpu_is_left_out_and_counted(change: dict[str, Any]) -> None:
    good, bad = make_gpu("GPU-good"), make_gpu("GPU-bad")
    manifest = gpu_node_manifest("n0", good, bad)
    manifest["status"]["gpus"][1] |= change
    node, dropped = _drop(manifest)
    assert [gpu.uuid for gpu in node.status.gpus] == ["GPU-good"]
    assert dropped == ["gpu"]


@pytest.mark.parametrize(
    "process",
    [
        {"pid": "x"},
        {"pid": 1, "memoryBytes": -5},
        {"pid": 1, "memoryBytes": 10**15},
        {"pid": 1, "memoryBytes": 5, "utilizationPercent": 700.0},
    ],
)
def test_an_absurd_process_is_left_out_and_counted(process: dict[str, Any]) -> None:
    manifest = gpu_node_manifest("n0", make_gpu(ours=[(POD.uid, GIB)]))
    manifest["status"]["gpus"][0]["processes"].append(process)
    node, dropped = _drop(manifest)
    assert [one.pod_uid for one in node.status.gpus[0].processes] == [POD.uid]
    assert dropped == ["process"]


def test_one_uuid_twice_is_one_gpu() -> None:
    node, dropped = _drop(gpu_node_manifest("n0", make_gpu(), make_gpu()))
    assert len(node.status.gpus) == 1
    assert dropped == ["duplicate_uuid"]


def test_a_job_that_the_nouns_refuse_says_the_field() -> None:
    manifest = job_manifest(make_job(), version=7, generation=3)
    manifest["spec"]["workers"] = 0
    manifest["status"]["observedGeneration"] = 2
    job = read_job(manifest)
    assert isinstance(job, InvalidJob)
    assert (job.field, job.observed_generation) == ("spec.workers", 2)
    assert (job.metadata.generation, job.metadata.resource_version) == (3, "7")


def test_a_readings_age_is_told_by_our_own_clock() -> None:
    freshness = Freshness()
    ahead = START + timedelta(hours=1)
    assert freshness.arrived("n0", ahead, START, START) == START
    later = START + timedelta(seconds=40)
    assert freshness.arrived("n0", ahead, later) == START, "the same reading grows old"
    newer = ahead + timedelta(seconds=39)
    assert freshness.arrived("n0", newer, later) == START + timedelta(seconds=39)


def test_a_reading_that_was_long_under_way_is_no_newer_for_it() -> None:
    freshness = Freshness()
    freshness.arrived("n0", T0, T0 + timedelta(seconds=1))
    late = freshness.arrived("n0", T0 + timedelta(seconds=30), T0 + timedelta(seconds=90))
    assert late == T0 + timedelta(seconds=31)


HOUR = timedelta(hours=1)


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
def test_a_clock_that_jumps_is_believed_from_the_next_reading_on(jump: timedelta) -> None:
    """I14, and no stall: the node stays open."""
    freshness = Freshness()
    freshness.arrived("n0", T0, T0)
    for number in range(1, DELAYS_MAX + 2):
        now = T0 + timedelta(seconds=number)
        assert freshness.arrived("n0", now + jump, now) == now


@pytest.mark.parametrize("jump_seconds", [-3600, 20, 40, 3600])
def test_a_reading_that_waited_is_not_new_because_its_agents_clock_was_set(
    jump_seconds: int,
) -> None:
    """I14: it waited for a frozen operator, and its agent has been dead since."""
    freshness, jump = Freshness(), timedelta(seconds=jump_seconds)
    freshness.arrived("n0", T0, T0, T0)
    written = T0 + timedelta(seconds=56)
    waited = written + timedelta(seconds=34)
    assert freshness.arrived("n0", written + jump, waited, written) == written
    now = waited + timedelta(seconds=20)
    assert freshness.arrived("n0", now + jump, now, now) == now, "the agent lives after all"


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
def test_an_api_server_whose_clock_jumps_makes_no_later_reading_older(jump: timedelta) -> None:
    freshness = Freshness()
    freshness.arrived("n0", T0, T0, T0)
    freshness.arrived("n0", T0 + timedelta(seconds=20), T0 + timedelta(seconds=20), T0 + jump)
    now = T0 + timedelta(seconds=40)
    assert freshness.arrived("n0", now, now, now + jump) == now


@pytest.mark.parametrize("dead_for", [timedelta(minutes=50), HOUR, timedelta(minutes=70)])
def test_a_dead_agent_with_a_fast_clock_is_not_believed_by_a_new_leader(
    dead_for: timedelta,
) -> None:
    """I14: its clock ran an hour ahead, so its last words look like news."""
    now = T0 + timedelta(days=1)
    written = now - dead_for
    found = Freshness().arrived("n0", written + HOUR, now, written)
    assert found == written
    without = Freshness().arrived("n0", written + HOUR, now)
    assert without is None or without <= now


def test_a_first_reading_from_the_future_tells_nothing() -> None:
    """Until there is a second one."""
    freshness = Freshness()
    assert freshness.arrived("n0", T0 + HOUR, T0) is None
    later = T0 + timedelta(seconds=2)
    assert freshness.arrived("n0", later + HOUR, later) == later


def test_when_a_status_was_stored_is_said_by_the_api_server() -> None:
    def manifest(*entries: object) -> dict[str, Any]:
        return {"metadata": {"managedFields": list(entries)}}

    status = {"subresource": "status", "time": "2026-01-01T00:00:05Z"}
    older = {**status, "time": "2026-01-01T00:00:01Z"}
    spec = {"time": "2026-01-02T00:00:00Z"}
    assert written_at(manifest(older, status, spec)) == T0 + timedelta(seconds=5)
    for odd in ({}, {"metadata": 1}, manifest(spec, 5, {**status, "time": "soon"}, {"time": None})):
        assert written_at(odd) is None


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
def test_readings_count_whatever_happens_to_the_agents_clock(jump: timedelta) -> None:
    """I1: what a job uses is measured on."""
    usage = MeasuredUsage()
    usage.observe(_node(_ours(2 * GIB), at=0), _find)
    for number in range(1, 5):
        at = jump.total_seconds() + 2 * number
        assert usage.observe(_node(_ours(20 * GIB), at=at), _find)
    assert _use(usage).memory_peak_bytes == 20 * GIB
    assert _use(usage).samples <= 1 + READINGS_PER_STATUS_MAX + 3


def test_a_clock_that_is_behind_does_not_make_new_readings_stale() -> None:
    freshness = Freshness()
    freshness.arrived("n0", T0, START)
    assert freshness.arrived("n0", T0 + timedelta(seconds=2), START) == START


def test_what_was_old_at_the_start_stays_old() -> None:
    assert Freshness().arrived("n0", T0, START) == T0


def test_never_measured() -> None:
    assert Freshness().arrived("n0", None, START) is None


def test_until_something_changes_all_is_the_same_object() -> None:
    """Who plans looks again at jobs of which there is another object."""
    usage = MeasuredUsage()
    usage.observe(_node(_ours(GIB), at=0), _find)
    first = usage.usage()
    assert usage.usage() is first
    usage.observe(make_gpu_node("n1", make_gpu(ours=[("unknown", GIB)]), at=2), _find)
    assert usage.usage() is first
    usage.observe(_node(_ours(2 * GIB), at=4), _find)
    assert usage.usage() != first
    usage.keep_only(set(), {"n0"})
    assert usage.usage() == {}


@pytest.mark.parametrize("wrong", [timedelta(hours=-1), timedelta(hours=1)])
def test_readings_that_a_wrong_clock_received_close_no_node(wrong: timedelta) -> None:
    """I14: an operator starts with a wall clock that is wrong, and learns the time a moment later:
    the next reading is as new as it is."""
    freshness = Freshness()
    freshness.arrived("n0", START, START + wrong + timedelta(seconds=1), START)
    freshness.clock_moved(-wrong)
    seconds = timedelta(seconds=20)
    now = START + seconds + timedelta(seconds=1)
    found = freshness.arrived("n0", START + seconds, now, START + seconds)
    assert found is not None
    assert timedelta(0) <= now - found <= timedelta(seconds=2)


@pytest.mark.parametrize("wrong", [timedelta(hours=-1), timedelta(seconds=-40), HOUR])
def test_a_wrong_clock_at_the_start_makes_no_reading_newer_than_it_is(wrong: timedelta) -> None:
    """I14: a new leader finds the last words of a dead agent before it learns the time."""
    freshness = Freshness()
    freshness.arrived("n0", START, START + wrong + timedelta(seconds=50), START)
    freshness.clock_moved(-wrong)
    assert freshness.moment("n0") == START
    again = freshness.arrived("n0", START, START + timedelta(seconds=51), START)
    assert again == START


@pytest.mark.parametrize(("other_bytes", "falls"), [(0, True), (4 * MIB, True), (GIB, False)])
def test_an_idle_display_does_not_disturb_a_measurement(other_bytes: int, falls: bool) -> None:
    usage = MeasuredUsage()
    for number in range(400):
        gpu = _ours(GIB, 20.0, busy=20.0)
        if other_bytes:
            gpu = replace(gpu, processes=(*gpu.processes, GPUProcess(2, other_bytes, None, 0.0)))
        usage.observe(_node(gpu, at=2.0 * number), _find)
        if number == 10:
            usage.settled(KEY, serves=False)
    assert _use(usage).may_fall is falls


def test_processes_that_no_reading_shows_are_absent_since_the_first_of_these() -> None:
    usage, empty = MeasuredUsage(), make_gpu()
    usage.observe(_node(_ours(GIB), at=0), _find)
    assert _use(usage).absent_since is None
    for at in (2, 4):
        usage.observe(_node(empty, at=at), _find)
        assert _use(usage).absent_since == T0 + timedelta(seconds=2)
    usage.observe(_node(_ours(GIB), at=6), _find)
    assert _use(usage).absent_since is None
    usage.observe(make_gpu_node("n1", empty, at=8), _find)
    assert _use(usage).absent_since is None, "it was never there"
