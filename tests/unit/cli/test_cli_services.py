"""kubectl gpujob report of a GPUService: replicas, latency, and what each backend measured."""

import json
from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpuservice import GPUService, GPUServiceStatus
from gpujob_api.manifest import gpuservice_from_manifest
from tests.harness.cli_jobs import MemoryCluster, run_command
from tests.harness.services import make_service

STATUS: dict[str, Any] = {
    "replicas": [
        {
            "name": "answers-0a1b2c-0",
            "revision": "0a1b2c",
            "ready": True,
            "node": "n1",
            "address": "10.0.0.7:8000",
        },
        {
            "name": "answers-0a1b2c-1",
            "revision": "0a1b2c",
            "message": "Unschedulable: no GPU has 6 GiB free",
        },
    ],
    "traffic": {
        "requestsPerSecond": 120.5,
        "withinObjectivePercent": 99.95,
        "latency": {"p50Milliseconds": 4.2, "p95Milliseconds": 7.0, "p99Milliseconds": 9.4},
        "busyPercent": 31,
        "refused": 3,
        "failed": 1,
        "gpuSecondsPerThousand": 2.57,
    },
    "choice": {
        "backend": "Compile",
        "precision": "bfloat16",
        "device": "NVIDIA A10",
        "seconds": 41,
        "reason": "least time of the GPU for each request.",
        "candidates": [
            {
                "backend": "Compile",
                "precision": "bfloat16",
                "accepted": True,
                "samplesPerSecond": 5310.2,
                "relativeErrorPercent": 0.31,
                "memoryBytes": 1 << 30,
                "time": {"fixedMilliseconds": 0.8, "perSampleMilliseconds": 0.11},
            },
            {
                "backend": "Compile",
                "precision": "float16",
                "accepted": False,
                "reason": "relative error 7.1 %, at most 2 %",
                "relativeErrorPercent": 7.1,
            },
        ],
    },
    "conditions": [
        {
            "type": "Ready",
            "status": "True",
            "reason": "ReplicasStarting",
            "message": "1 of 2 replicas answer requests",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        },
    ],
    "summary": {"backend": "Compile bfloat16"},
}


def service(status: dict[str, Any] | None = None) -> GPUService:
    made = make_service()
    metadata = replace(made.metadata, namespace="vision")
    manifest = {
        "metadata": {"name": "answers", "namespace": "vision"},
        "spec": {"template": made.spec.template},
        "status": STATUS if status is None else status,
    }
    found = gpuservice_from_manifest(manifest)
    return replace(found, metadata=metadata)


def shown(*words: str, status: dict[str, Any] | None = None) -> str:
    cluster = MemoryCluster(services=[service(status)])
    ran = run_command(cluster, "report", "answers", *words)
    assert ran.exit_code == 0
    return ran.stdout


def test_the_report_has_latency_replicas_and_every_candidate_with_its_reason() -> None:
    text = shown()
    for part in (
        "1 of 2 replicas answer requests",
        "120.5/s; p50 4.2 ms, p95 7.0 ms, p99 9.4 ms; 99.95 % within 100 ms (objective 99 %)",
        "3 refused with 503, 1 failed",
        "31 % of the time of a replica, 2.57 s for 1,000 requests",
        "least time of the GPU for each request. (2 candidates, 41 s, NVIDIA A10)",
        "10.0.0.7:8000",
        "Unschedulable: no GPU has 6 GiB free",
        "0.8 + 0.11 n ms",
        "relative error 7.1 %, at most 2 %",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("gate", "text"),
    [
        ({"name": "answers-gate-0", "ready": True, "address": "10.0.0.9:8000"}, "10.0.0.9:8000"),
        ({"name": "answers-gate-0", "message": "ImagePullBackOff: x"}, "ImagePullBackOff: x"),
    ],
)
def test_the_report_has_the_gate_and_its_address(gate: dict[str, Any], text: str) -> None:
    assert f"answers-gate-0, {text}" in shown(status=STATUS | {"gate": gate})


def test_json_is_the_status() -> None:
    data = json.loads(shown("-o", "json"))
    assert data["name"] == "answers"
    assert data["choice"]["backend"] == "Compile"


def test_a_page_of_html_has_both_tables() -> None:
    page = shown("--html")
    assert page.count("<table") == 3
    assert "relative error 7.1 %, at most 2 %" in page


def test_a_new_service_is_said_to_be_new() -> None:
    assert GPUServiceStatus() == service({}).status
    assert "not processed yet" in shown(status={})


def test_a_name_of_neither_a_job_nor_a_service_is_an_error() -> None:
    ran = run_command(MemoryCluster(), "report", "answers")
    assert ran.exit_code == 1
    assert "not found: gpujob answers" in str(ran.exception)


@pytest.mark.parametrize("verb", ["why", "logs", "timeline"])
def test_a_command_for_jobs_names_the_one_that_lists_the_jobs_of_a_service(verb: str) -> None:
    ran = run_command(MemoryCluster(services=[service()]), verb, "answers")
    assert ran.exit_code == 1
    assert "kubectl gpujob report answers" in str(ran.exception)
    assert run_command(MemoryCluster(), verb, "answers").exit_code == 1
