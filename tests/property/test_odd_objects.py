"""I10: nothing that an API object holds stops the operator, or makes a node look emptier."""

import copy
import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpujob_api.codec import FieldError
from gpujob_api.manifest import to_manifest
from gpujob_api.report import Report
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.planner import plan
from gpujob_operator.observe.cache import Cache, Kind
from gpujob_operator.observe.dirty import Dirty
from gpujob_operator.read.configuration import configuration_from_text
from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.builders import make_job, make_queue, placed
from tests.harness.manifests import (
    gpu_node_manifest,
    job_manifest,
    node_manifest,
    pod_manifest,
    volume_manifest,
)
from tests.harness.odd_json import ODD_SCALARS, nested, odd_objects, odd_values, to_json
from tests.harness.services import make_service

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = placed(make_job())
ENDED = {"terminated": {"exitCode": 1, "message": '{"attempt":1,"phase":"training"}'}}
PLAUSIBLE: dict[Kind, dict[str, Any]] = {
    Kind.JOB: job_manifest(JOB),
    Kind.GPU_NODE: gpu_node_manifest(),
    Kind.QUEUE: to_manifest(make_queue()),
    Kind.PROFILE: {
        "metadata": {"name": "p", "namespace": "team", "uid": "uid-p"},
        "spec": {},
        "status": {},
    },
    Kind.SERVICE: to_manifest(make_service()),
    Kind.POD: pod_manifest(JOB, phase="Failed", state=ENDED),
    Kind.NODE: node_manifest(taints=[{"key": "a", "effect": "NoSchedule"}]),
    Kind.VOLUME: volume_manifest("a"),
}
odd_events = st.sampled_from(list(Kind)).flatmap(
    lambda kind: st.tuples(
        st.just(kind),
        st.sampled_from(["ADDED", "MODIFIED", "DELETED", None]),
        odd_objects(_identified(PLAUSIBLE[kind])),
    )
)


def _identified(manifest: dict[str, Any]) -> dict[str, Any]:
    metadata = {"uid": "uid-odd", "resourceVersion": "7", **manifest["metadata"]}
    return {**manifest, "metadata": metadata}


def _cache() -> Cache:
    cache = Cache(Dirty(), Metrics(), lambda: NOW)
    for kind, manifest in PLAUSIBLE.items():
        cache.resync(kind, [_identified(copy.deepcopy(manifest))], "8")
    return cache


@pytest.mark.promise("I10")
@given(events=st.lists(odd_events, min_size=1, max_size=4))
def test_the_cache_takes_any_object_and_decisions_go_on(events: list[Any]) -> None:
    cache = _cache()
    for kind, event_type, manifest in events:
        cache.apply(kind, event_type, manifest)
    plan(cache.snapshot((), Configuration()), NOW)
    for kind, _, manifest in events:
        cache.lacks(kind, [manifest], "9")
        cache.resync(kind, [manifest, _identified(PLAUSIBLE[kind])], "9")
    plan(cache.snapshot((), Configuration()), NOW)


@pytest.mark.parametrize("position", range(len(ODD_SCALARS)))
def test_last_words_of_any_kind_leave_the_worker_what_it_is(position: int) -> None:
    cache = _cache()
    ended = {"terminated": {"exitCode": 1, "message": ODD_SCALARS[position]}}
    pod = _identified(pod_manifest(JOB, phase="Failed", state=ended))
    pod["metadata"]["resourceVersion"] = "10"
    cache.apply(Kind.POD, "MODIFIED", pod)
    (view,) = cache.snapshot((), Configuration()).pods
    assert (view.exit_code, view.finished) == (1, True)
    view.termination_text.encode()


def _running_pod() -> dict[str, Any]:
    manifest = _identified(pod_manifest(JOB, phase="Running"))
    container = {"name": "c", "resources": {"requests": {"cpu": "3", "memory": "1Gi"}}}
    manifest["metadata"] |= {"name": "any", "uid": "uid-any", "resourceVersion": "20"}
    manifest["spec"] = {"nodeName": "n0", "containers": [container]}
    return manifest


@given(data=st.data())
def test_a_pod_that_cannot_be_read_never_makes_its_node_look_emptier(data: st.DataObject) -> None:
    """Whatever else it holds: a pod with a node and without a proven end counts."""
    cache = _cache()
    (before,) = cache.snapshot((), Configuration()).nodes
    part = data.draw(st.sampled_from(["labels", "spec", "status", "container", "requests"]))
    pod, value = _running_pod(), data.draw(odd_values())
    container = pod["spec"]["containers"][0]
    places: dict[str, tuple[dict[str, Any], str]] = {
        "labels": (pod["metadata"], "labels"),
        "spec": (pod["spec"], "containers"),
        "status": (pod, "status"),
        "container": (container, "name"),
        "requests": (container["resources"], "requests"),
    }
    holder, name = places[part]
    # What is readably absent or empty asks for nothing.
    asks_nothing = part in ("spec", "requests") and (value is None or value in ([], {}))
    asks_nothing |= part == "requests" and isinstance(value, dict)
    asks_nothing |= part == "spec" and isinstance(value, list)
    holder[name] = value
    cache.apply(Kind.POD, "ADDED", pod)
    (after,) = cache.snapshot((), Configuration()).nodes
    assert after.cpu_milli_free <= before.cpu_milli_free
    if not asks_nothing:
        assert after.cpu_milli_free <= before.cpu_milli_free - 3000


def test_a_reader_that_fails_leaves_a_worker_the_worker_that_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = _cache()
    (before,) = cache.snapshot((), Configuration()).pods

    def broken(manifest: object) -> Any:
        raise ZeroDivisionError("a reader's own fault")

    monkeypatch.setattr(cache.pods, "_parse", broken)
    pod = _identified(pod_manifest(JOB))
    pod["metadata"]["resourceVersion"] = "30"
    cache.apply(Kind.POD, "MODIFIED", pod)
    other = _running_pod()
    cache.apply(Kind.POD, "ADDED", other)
    snapshot = cache.snapshot((), Configuration())
    assert snapshot.pods == (before,)
    assert snapshot.nodes[0].cpu_milli_free == 0
    other["status"]["phase"], other["metadata"]["resourceVersion"] = "Succeeded", "31"
    cache.apply(Kind.POD, "MODIFIED", other)
    assert cache.snapshot((), Configuration()).nodes[0].cpu_milli_free > 0


@pytest.mark.parametrize("kind", [Kind.QUEUE, Kind.GPU_NODE])
def test_a_list_with_an_object_that_cannot_be_read_tells_nothing_new_twice(kind: Kind) -> None:
    """Or else kopf would be started again with every list."""
    cache = _cache()
    odd = _identified(copy.deepcopy(PLAUSIBLE[kind]))
    odd["metadata"] |= {"name": "odd", "uid": "uid-2", "resourceVersion": "40"}
    odd["spec"] = "odd"
    assert cache.lacks(kind, [odd], "8")
    cache.apply(kind, "ADDED", odd)
    assert not cache.lacks(kind, [odd, _identified(PLAUSIBLE[kind])], "8")


@given(value=odd_values())
def test_any_text_is_a_report_or_an_error_that_names_the_field(value: Any) -> None:
    plausible = {"attempt": 1, "phase": "training", "loss": value, "device": value}
    for data in (value, plausible, {**plausible, "loss": None}):
        with suppress(FieldError):
            json.loads(Report.from_text(to_json(data).decode()).to_text().encode())


@given(value=odd_values(), name=st.sampled_from(["memoryMarginFraction", "reportUrl", "x", "a.b"]))
def test_any_configuration_is_read_or_refused_by_field(value: Any, name: str) -> None:
    for text in (f"{name}: {to_json(value).decode()}", to_json(value).decode()):
        with suppress(FieldError, yaml.YAMLError):
            configuration_from_text(text)


def test_a_template_that_no_json_holds_is_a_condition_and_not_an_end() -> None:
    cache = _cache()
    for value in (nested(5000), float("nan"), 2**63, "\ud800", {"\udcff": 1}):
        job = _identified(job_manifest(JOB))
        job["metadata"] |= {"name": "odd", "uid": "uid-odd-job", "resourceVersion": "50"}
        job["spec"]["template"]["spec"]["odd"] = value
        cache.jobs.remove("uid-odd-job", 0)
        cache.apply(Kind.JOB, "ADDED", job)
        (invalid,) = cache.snapshot((), Configuration()).invalid_jobs
        assert invalid.field.startswith("spec.template")
