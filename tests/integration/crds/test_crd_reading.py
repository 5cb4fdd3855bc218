"""What people see: defaults, columns, explanations, and waiting for a condition."""

import json
from dataclasses import replace
from http import HTTPStatus
from itertools import pairwise
from typing import Any

import pytest

from gpujob_api.codec import encode
from gpujob_api.gpujob import GPUJobSpec, JobPhase
from gpujob_api.manifest import RESOURCES, gpujob_from_manifest
from gpujob_api.quantities import GIB
from gpujob_local.control_plane.api_client import ApiError
from gpujob_operator.decide.lifecycle.printer_columns import summarize
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.conditions import ConditionWriter
from tests.harness.builders import T0, make_job, measured, running, with_status
from tests.harness.cluster import RunningControlPlane
from tests.harness.crds import KINDS, schema_of, walk
from tests.harness.jobs import job_manifest
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.cluster

Json = dict[str, Any]

STATUS: Json = {
    "phase": "Running",
    "attempt": 2,
    "summary": {
        "where": "node-a GPU-0",
        "progress": "41/240 17%",
        "eta": "16s",
        "speed": "12 steps/s",
        "memory": "3 of 8 GiB",
        "cost": "0.12",
        "reason": "Placed",
    },
}


@pytest.fixture
def path(control_plane: RunningControlPlane, namespace: str) -> str:
    collection = f"/apis/gpujob.dev/v1alpha1/namespaces/{namespace}/gpujobs"
    control_plane.client().create(collection, job_manifest())
    return f"{collection}/job"


def test_defaults_are_stored_and_are_those_of_python(
    control_plane: RunningControlPlane, path: str
) -> None:
    stored = control_plane.client().get(path)
    assert stored["spec"]["sharing"] == {"mode": "Auto", "maxSlowdownPercent": 10}
    assert stored["spec"]["retry"] == {"limit": 3, "hangTimeoutSeconds": 600}
    assert gpujob_from_manifest(stored).spec == GPUJobSpec(job_manifest()["spec"]["template"])


COLUMNS = ["NAME", "PHASE", "PROGRESS", "MEMORY", "AGE"]
WIDE_COLUMNS = [*COLUMNS, "ETA", "WHERE", "SPEED", "COST", "QUEUE", "ATTEMPT", "REASON"]
TERMINAL_COLUMNS = 100


def test_columns_say_whether_how_far_and_where(
    control_plane: RunningControlPlane, namespace: str, path: str
) -> None:
    control_plane.client().merge(f"{path}/status", {"status": STATUS})
    command = ("get", "gj", "-n", namespace, "-o", "wide")
    head, line = control_plane.kubectl(*command).stdout.splitlines()
    assert head.split() == WIDE_COLUMNS
    starts = [head.index(column) for column in WIDE_COLUMNS]
    cells = [line[start:end].strip() for start, end in pairwise([*starts, len(line)])]
    assert cells[:4] == ["job", "Running", "41/240 17%", "3 of 8 GiB"]
    assert cells[5:] == ["16s", "node-a GPU-0", "12 steps/s", "0.12", "default", "2", "Placed"]


# What the columns hold at their longest, in practice: name, phase, why it does not run, step, steps
# in all, GPU memory.
PRACTICE = [
    ("llama-3-8b-finetune-lr3e-5-seed42", "Running", "", 1_234_567, 2_500_000, 72.4),
    ("resnet50-imagenet-baseline", "Succeeded", "", 450_360, 450_360, 19.8),
    ("sweep-007-batch256-cosine", "Pending", "Inadmissible", 0, None, 80.0),
    ("sweep-008-batch512-cosine", "Failed", "OutOfMemory", 8_841, 2_500_000, 80.0),
    ("recommender", "Starting", "", 12, None, 0.9),
]


def test_the_columns_fit_into_a_terminal(
    control_plane: RunningControlPlane, namespace: str
) -> None:
    """Filled by the operator's own words. Figures of 189 columns wrap, and nobody can read them."""
    client = control_plane.client()
    collection = f"/apis/gpujob.dev/v1alpha1/namespaces/{namespace}/gpujobs"
    for name, phase, why, step, total, memory_gib in PRACTICE:
        manifest = job_manifest()
        manifest["metadata"]["name"] = name
        client.create(collection, manifest)
        made = running(make_job())
        seen = replace(measured(int(memory_gib * GIB), step=step), steps_total=total)
        job = with_status(made, phase=JobPhase(phase), measurement=seen)
        if why:
            job = with_status(job, placement=None, reservation=None)
        writer = ConditionWriter(job, job.status, T0)
        kind = conditions.SCHEDULED if phase == "Pending" else conditions.SUCCEEDED
        if why:
            writer.set(kind, False, why)
        summary = encode(summarize(job, job.status, writer, ()))
        wide = {"reason": "InsufficientCapacity: " + "of 64 GPUs 40 are too full; " * 6}
        body = {"phase": phase, "attempt": 3, "summary": {**summary, **wide}}
        client.merge(f"{collection}/{name}/status", {"status": body})
    lines = control_plane.kubectl("get", "gpujobs", "-n", namespace).stdout.splitlines()
    assert lines[0].split() == COLUMNS
    assert len(lines) == 1 + len(PRACTICE)
    assert "1234567/2500000 49%" in str(lines)
    assert "  Pending     Inadmissible  " in str(lines)
    assert "  Failed      step 8841, OutOfMemory  " in str(lines)
    # The column for the age grows by three characters within months (118d).
    assert max(len(line.rstrip()) for line in lines) <= TERMINAL_COLUMNS - 3, lines


@pytest.mark.parametrize("called", ["gpujobs", "gpujob", "gj", "gpujobs.gpujob.dev"])
def test_a_job_is_found_under_all_its_names(
    control_plane: RunningControlPlane, namespace: str, path: str, called: str
) -> None:
    done = control_plane.kubectl("get", called, "job", "-n", namespace, "-o", "name")
    assert done.stdout == "gpujob.gpujob.dev/job\n"


def test_the_category_lists_every_kind(
    control_plane: RunningControlPlane, namespace: str, path: str
) -> None:
    control_plane.client().create(
        "/apis/gpujob.dev/v1alpha1/gpunodes",
        {
            "apiVersion": "gpujob.dev/v1alpha1",
            "kind": "GPUNode",
            "metadata": {"name": namespace},
        },
    )
    listed = control_plane.kubectl("get", "gpujob-dev", "-n", namespace, "-o", "name").stdout
    assert {"gpujob.gpujob.dev/job", f"gpunode.gpujob.dev/{namespace}"} <= set(listed.split())
    control_plane.client().delete(f"/apis/gpujob.dev/v1alpha1/gpunodes/{namespace}")


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("status.phase=Running", "gpujob.gpujob.dev/job\n"),
        ("status.phase=Failed", ""),
        ("spec.queue=default", "gpujob.gpujob.dev/job\n"),
    ],
)
def test_jobs_are_selected_by_phase_and_queue(
    control_plane: RunningControlPlane, namespace: str, path: str, selector: str, found: str
) -> None:
    control_plane.client().merge(f"{path}/status", {"status": STATUS})
    done = control_plane.kubectl(
        "get", "gj", "-n", namespace, "-o", "name", "--field-selector", selector
    )
    assert done.stdout == found


def test_kubectl_waits_for_a_condition(
    control_plane: RunningControlPlane, namespace: str, path: str
) -> None:
    waiting = ("wait", "--for=condition=Succeeded", "gpujob/job", "-n", namespace)
    early = control_plane.kubectl(*waiting, "--timeout=0s", check=False)
    assert early.returncode != 0
    condition = {"type": "Succeeded", "status": "True", "reason": "Finished", "message": ""}
    condition |= {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    control_plane.client().merge(f"{path}/status", {"status": {"conditions": [condition]}})
    assert "condition met" in control_plane.kubectl(*waiting, "--timeout=30s").stdout


@pytest.fixture
def published(control_plane: RunningControlPlane) -> Json:
    """The schemas that `kubectl explain` reads. The API server publishes them a moment after it
    serves the kinds."""
    found: Json = {}

    def all_there() -> bool:
        try:
            document = control_plane.client().get("/openapi/v3/apis/gpujob.dev/v1alpha1")
        except ApiError as error:
            if error.code != HTTPStatus.NOT_FOUND:
                raise
            return False
        found.update(document["components"]["schemas"])
        return all(_schema_name(kind) in found for kind in KINDS)

    wait_until(all_there, 60, "the kinds' schemas are published")
    return found


def _schema_name(kind: type[Any]) -> str:
    return f"dev.gpujob.v1alpha1.{RESOURCES[kind].kind}"


@pytest.mark.parametrize("kind", KINDS)
def test_explain_has_a_text_for_every_field(published: Json, kind: type[Any]) -> None:
    """The published document has every description of the file."""
    texts = dict(walk(published[_schema_name(kind)], ""))
    for path, schema in walk(schema_of(kind), ""):
        if path not in ("", "metadata", "metadata.name"):
            assert texts[path].get("description"), path
            if "properties" not in schema:
                assert texts[path]["description"] == schema["description"] or path in (
                    "apiVersion",
                    "kind",
                )


@pytest.mark.usefixtures("published")
def test_kubectl_explains(control_plane: RunningControlPlane) -> None:
    shown = control_plane.kubectl("explain", "gpujob.spec.checkpoint").stdout
    assert "volumeClaimName" in shown
    assert "starts the job again from the beginning" in " ".join(shown.split())
    recursive = control_plane.kubectl("explain", "gpujob.spec", "--recursive").stdout
    assert json.dumps("maxSlowdownPercent").strip('"') in recursive
