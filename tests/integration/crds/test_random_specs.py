"""Random specs are refused with the field, make a pod, or their pod is refused in words.

What is refused for a pod only is found by the operator's trial, a dry run of the very same pod.
"""

import copy
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpujob_api.codec import FieldError
from gpujob_api.gpujob import GPUJob
from gpujob_api.manifest import gpujob_from_manifest
from gpujob_api.settings import Settings
from gpujob_local.control_plane.api_client import ApiClient, ApiError
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.plan import CreatePod
from gpujob_operator.render.pod import worker_pod
from tests.harness.builders import placed
from tests.harness.cluster import RunningControlPlane
from tests.harness.crds import Schema, schema_of
from tests.harness.jobs import job_manifest
from tests.harness.schema_values import accepted_values

pytestmark = [pytest.mark.promise("I10"), pytest.mark.cluster]

JOBS = "/apis/gpujob.dev/v1alpha1/namespaces/default/gpujobs?dryRun=All&fieldValidation=Strict"
PODS = "/api/v1/namespaces/default/pods?dryRun=All&fieldValidation=Strict"
SPECS = 150
CONFIGURATION = Configuration(report_url="http://operator/report")
SPEC: Schema = schema_of(GPUJob)["properties"]["spec"]
POD: Schema = SPEC["properties"]["template"]["properties"]["spec"]
CONTAINER: Schema = POD["properties"]["containers"]["items"]
Path = tuple[str | int, ...]


def places() -> list[tuple[Path, Schema]]:
    """Fields of the spec, of the pod and of its worker container, with their schemas."""
    pod: Path = ("template", "spec")
    found = [((name,), child) for name, child in SPEC["properties"].items() if name != "template"]
    found += [((*pod, name), child) for name, child in POD["properties"].items()
              if name != "containers"]  # fmt: skip
    worker: Path = (*pod, "containers", 0)
    own = [((*worker, name), child) for name, child in CONTAINER["properties"].items()
           if name != "name"]  # fmt: skip
    return [*found, *own]


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """A good spec with one to three fields as the schema lets them in, or nearly so."""
    spec: dict[str, Any] = copy.deepcopy(job_manifest()["spec"])
    for path, schema in draw(st.lists(st.sampled_from(places()), min_size=1, max_size=3)):
        target: Any = spec
        for step in path[:-1]:
            target = target[step]
        target[path[-1]] = draw(accepted_values(schema))
    return spec


def test_a_random_spec_is_refused_with_its_field_or_becomes_a_pod(
    control_plane: RunningControlPlane,
) -> None:
    client, ends = control_plane.client(), Counter[str]()

    @settings(max_examples=SPECS)
    @given(specs())
    def one(spec: dict[str, Any]) -> None:
        ends[end_of(client, spec)] += 1

    one()
    assert ends["pod"] > SPECS / 10, ends
    assert not ends["refused by its field: False"]


def end_of(client: ApiClient, spec: dict[str, Any]) -> str:
    """What becomes of the spec; asserts that it is one of the ends that are promised."""
    accepted = answer(client, JOBS, job_manifest() | {"spec": spec})
    if isinstance(accepted, ApiError):
        assert accepted.code in (400, 422), accepted
        assert "spec." in str(accepted), accepted
        return "refused at apply"
    job = placed(gpujob_from_manifest(accepted))
    try:
        pod = worker_pod(CreatePod(job, 0, Settings()), CONFIGURATION)
    except FieldError as error:
        return f"refused by its field: {error.field.startswith('spec.template.spec.')}"
    made = answer(client, PODS, pod)
    if isinstance(made, ApiError):
        # As a definite answer it is the job's condition, with these words.
        assert made.code in (400, 403, 422), made
        return "refused by the trial"
    return "pod"


def answer(client: ApiClient, path: str, manifest: dict[str, Any]) -> dict[str, Any] | ApiError:
    try:
        return client.create(path, manifest)
    except ApiError as error:
        return error
