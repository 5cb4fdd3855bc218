"""What a GPUJob refuses: the same as its CRD, so that an older CRD cannot hurt."""

from typing import Any

import pytest

from gpujob_api.codec import FieldError, decode
from gpujob_api.gpujob import (
    Checkpoint,
    GPUJob,
    GPUJobSpec,
    JobPhase,
    Retry,
    Sharing,
    SharingMode,
)
from gpujob_api.manifest import gpujob_from_manifest
from gpujob_api.meta import Metadata

WORKER = {"name": "worker", "image": "trainer"}
TEMPLATE = {"spec": {"containers": [{"name": "log"}, WORKER]}}


def _spec(**fields: Any) -> dict[str, Any]:
    return {"template": TEMPLATE} | fields


REFUSED = [
    ({"queue": "Research"}, "queue"),
    ({"queue": "a" * 64}, "queue"),
    ({"queue": ""}, "queue"),
    ({"priority": 1_000_001}, "priority"),
    ({"workers": 0}, "workers"),
    ({"workers": -1}, "workers"),
    ({"workers": 10**6}, "workers"),
    ({"gpusPerWorker": 17}, "gpusPerWorker"),
    ({"gpu": {"memory": "16GB"}}, "gpu.memory"),
    ({"gpu": {"memory": 1e308}}, "gpu.memory"),
    ({"gpu": {"memory": 20}}, "gpu.memory"),
    ({"gpu": {"models": ["H100", "H100"]}}, "gpu.models"),
    ({"gpu": {"models": [""]}}, "gpu.models[0]"),
    ({"gpu": {"models": [f"model {n}" for n in range(17)]}}, "gpu.models"),
    ({"sharing": {"mode": "Both"}}, "sharing.mode"),
    ({"sharing": {"maxSlowdownPercent": 101}}, "sharing.maxSlowdownPercent"),
    ({"sharing": {"maxSlowdownPercent": -1}}, "sharing.maxSlowdownPercent"),
    ({"sharing": {"mode": "Shared"}, "gpusPerWorker": 2}, "sharing.mode"),
    ({"optimize": {"mode": True}}, "optimize.mode"),
    ({"optimize": {"precision": "int4"}}, "optimize.precision"),
    ({"optimize": {"batchSize": {"total": 0}}}, "optimize.batchSize.total"),
    ({"optimize": {"batchSize": {"total": 250, "perStep": 64}}}, "optimize.batchSize.total"),
    ({"optimize": {"batchSize": {"perStep": "64"}}}, "optimize.batchSize.perStep"),
    ({"optimize": {"batchSize": {"perStep": 0}}}, "optimize.batchSize.perStep"),
    ({"checkpoint": {"interval": "10"}}, "checkpoint.interval"),
    ({"checkpoint": {"interval": "0s"}}, "checkpoint.interval"),
    ({"checkpoint": {"keep": 1}}, "checkpoint.keep"),
    ({"checkpoint": {"volumeClaimName": "Not A Claim"}}, "checkpoint.volumeClaimName"),
    ({"checkpoint": {"path": ""}}, "checkpoint.path"),
    ({"checkpoint": {"path": "../other/last.pt"}}, "checkpoint.path"),
    ({"checkpoint": {"path": "runs/.."}}, "checkpoint.path"),
    ({"checkpoint": {"resumeArguments": ["--resume"]}}, "checkpoint.resumeArguments"),
    ({"checkpoint": {"path": "a", "resumeArguments": [""]}}, "checkpoint.resumeArguments[0]"),
    ({"disruption": "Never"}, "disruption"),
    ({"retry": {"limit": 101}}, "retry.limit"),
    ({"retry": {"hangTimeoutSeconds": 0}}, "retry.hangTimeoutSeconds"),
    ({"template": {}}, "template.spec.containers"),
    (
        {"template": {"spec": {"containers": [{"name": "main"}, {"name": "other"}]}}},
        "template.spec.containers",
    ),
    ({"template": {"spec": {"containers": "worker"}}}, "template.spec.containers"),
    ({"template": {"spec": {"containers": ["worker", None, 7]}}}, "template.spec.containers"),
    ({"template": {"spec": []}}, "template.spec.containers"),
    ({"template": []}, "template"),
    ({"template": None}, "template"),
    ({"suspend": "yes"}, "suspend"),
]


@pytest.mark.parametrize(("fields", "field"), REFUSED)
def test_bad_specs_are_refused_by_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(FieldError) as caught:
        decode(GPUJobSpec, _spec(**fields), "spec")
    assert caught.value.field == f"spec.{field}"


def test_the_least_a_job_needs() -> None:
    spec = decode(GPUJobSpec, _spec())
    assert spec == GPUJobSpec(TEMPLATE)
    assert spec.worker_container() == WORKER
    assert (spec.queue, spec.workers, spec.checkpoint.keep) == ("default", 1, 3)


@pytest.mark.parametrize(
    "fields",
    [
        {"optimize": {"mode": False, "compile": True, "dataLoading": False}},
        {"optimize": {"batchSize": {"total": 256, "perStep": 64}}},
        {"optimize": {"batchSize": {"perStep": 64}}},
        {"optimize": {"batchSize": {"total": 250, "perStep": "Auto"}}},
        # The operator may make the claim.
        {"spot": {"policy": "Require"}},
        {"checkpoint": {"path": "runs/..best/*.pt"}},
        {"disruption": "Allow"},
        {"sharing": {"mode": "Exclusive"}, "gpusPerWorker": 8, "workers": 1024},
        {"gpu": {"memory": "1Mi"}},
    ],
)
def test_good_specs_are_read(fields: dict[str, Any]) -> None:
    decode(GPUJobSpec, _spec(**fields))


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: Retry(limit=-1), "limit"),
        (lambda: Checkpoint(keep=1), "keep"),
        (lambda: Sharing(SharingMode.AUTO, 101), "maxSlowdownPercent"),
        (lambda: GPUJobSpec(TEMPLATE, workers=0), "workers"),
        (lambda: GPUJobSpec(TEMPLATE, queue="-"), "queue"),
    ],
)
def test_what_python_builds_is_checked_too(build: Any, field: str) -> None:
    with pytest.raises(FieldError) as caught:
        build()
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("interval", "seconds"),
    [("Auto", None), ("30s", 30), ("10m", 600), ("2h", 7200), ("999999h", 999999 * 3600)],
)
def test_intervals(interval: str, seconds: int | None) -> None:
    assert Checkpoint(interval=interval).interval_seconds == seconds


@pytest.mark.parametrize("name", ["", "a" * 53, "A", "a.b", "-a", "a_b", "a\n"])
def test_names_that_would_not_fit_into_pod_names_are_refused(name: str) -> None:
    with pytest.raises(FieldError) as caught:
        gpujob_from_manifest({"metadata": {"name": name}, "spec": _spec()})
    assert caught.value.field == "metadata.name"


def test_the_longest_name_fits_into_a_label_with_attempt_and_rank() -> None:
    assert len(f"{'a' * 52}-99999-1023") == 63


@pytest.mark.parametrize(
    ("phase", "finished"), [(phase, phase.value in ("Succeeded", "Failed")) for phase in JobPhase]
)
def test_only_succeeded_and_failed_are_final(phase: JobPhase, finished: bool) -> None:
    job = gpujob_from_manifest(
        {"metadata": {"name": "a"}, "spec": _spec(), "status": {"phase": phase.value}}
    )
    assert job.finished is finished


def test_an_untouched_job_is_pending() -> None:
    job = GPUJob(Metadata("a"), GPUJobSpec(TEMPLATE))
    assert job.status.phase is JobPhase.PENDING
    assert job.status.attempt == 0
