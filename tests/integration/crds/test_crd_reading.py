"""What people see: defaults, columns, explanations, and waiting for a condition."""

import json
from itertools import pairwise
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJobSpec
from gpujob_api.manifest import RESOURCES, gpujob_from_manifest
from tests.harness.cluster import RunningControlPlane
from tests.harness.crds import KINDS, schema_of, walk
from tests.harness.jobs import job_manifest

pytestmark = pytest.mark.cluster

STATUS: dict[str, Any] = {
    "phase": "Running",
    "attempt": 2,
    "summary": {
        "where": "node-a GPU-0",
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


def test_columns_say_whether_where_how_fast_and_for_how_much(
    control_plane: RunningControlPlane, namespace: str, path: str
) -> None:
    control_plane.client().merge(f"{path}/status", {"status": STATUS})
    head, line = control_plane.kubectl("get", "gj", "-n", namespace).stdout.splitlines()
    columns = [*("NAME", "PHASE", "WHERE", "SPEED", "MEMORY", "COST"), *("QUEUE", "ATTEMPT")]
    columns += ["REASON", "AGE"]
    assert head.split() == columns
    starts = [head.index(column) for column in columns]
    cells = [line[start:end].strip() for start, end in pairwise(starts)]
    assert cells == [
        *("job", "Running", "node-a GPU-0", "12 steps/s", "3 of 8 GiB", "0.12"),
        *("default", "2", "Placed"),
    ]


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


@pytest.mark.parametrize("kind", KINDS)
def test_explain_has_a_text_for_every_field(
    control_plane: RunningControlPlane, kind: type[Any]
) -> None:
    """The published document that `kubectl explain` reads has every description of the file."""
    document = control_plane.client().get("/openapi/v3/apis/gpujob.dev/v1alpha1")
    name = f"dev.gpujob.v1alpha1.{RESOURCES[kind].kind}"
    published = dict(walk(document["components"]["schemas"][name], ""))
    for path, schema in walk(schema_of(kind), ""):
        if path not in ("", "metadata", "metadata.name"):
            assert published[path].get("description"), path
            if "properties" not in schema:
                assert published[path]["description"] == schema["description"] or path in (
                    "apiVersion",
                    "kind",
                )


def test_kubectl_explains(control_plane: RunningControlPlane) -> None:
    shown = control_plane.kubectl("explain", "gpujob.spec.checkpoint").stdout
    assert "volumeClaimName" in shown
    assert "are lost with it" in " ".join(shown.split())
    recursive = control_plane.kubectl("explain", "gpujob.spec", "--recursive").stdout
    assert json.dumps("maxSlowdownPercent").strip('"') in recursive
