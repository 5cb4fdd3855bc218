"""The jobs, pods and Service of a GPUService."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpuservice import GPUService, ServiceOptimize
from gpujob_api.manifest import gpujob_from_manifest
from gpujob_api.meta import LABEL_REVISION, LABEL_SERVICE, LABEL_SERVICE_UID
from gpujob_api.serving import BackendName, Objective, ServingSettings
from gpujob_api.settings import Settings, Task
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.node_affinity import (
    affinity_mismatch,
    preferred_affinity,
    required_affinity,
)
from gpujob_operator.decide.model.plan import CreatePod
from gpujob_operator.decide.model.service_plan import CreateJob, Role
from gpujob_operator.decide.services.replicas import measurement_name
from gpujob_operator.render.gpuservice import core_service, service_job
from gpujob_operator.render.pod import worker_pod
from tests.harness.builders import T0, make_template, placed
from tests.harness.services import make_service, read_job


def create(service: GPUService, role: Role = Role.REPLICA) -> CreateJob:
    is_replica = role is Role.REPLICA
    name = "answers-0a1b2c-0" if is_replica else measurement_name("answers", "0a1b2c3d4e5f")
    return CreateJob(service, name, role, "0a1b2c", ServingSettings(measure=False))


def worker(manifest: dict[str, Any]) -> dict[str, Any]:
    return manifest["spec"]["template"]["spec"]["containers"][0]


def env(container: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}


def test_a_replica_gets_its_settings_its_address_and_a_probe() -> None:
    template = make_template()
    template["spec"]["containers"][0]["env"] = [
        {"name": "MODEL", "value": "m"},
        {"name": "GPUJOB_SERVING", "value": "{}"},
    ]
    service = make_service(template=template, port=9000)
    manifest = service_job(create(service))
    container = worker(manifest)
    found = env(container)
    assert found["MODEL"] == "m"
    assert ServingSettings.from_text(found["GPUJOB_SERVING"]) == ServingSettings()
    assert found["GPUJOB_SERVING_HOST"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert container["readinessProbe"]["httpGet"] == {"path": "/v2/health/ready", "port": 9000}
    assert gpujob_from_manifest(manifest).spec.optimize.task is Task.SERVING
    assert service.spec.template == template, "the service's own template is unchanged"


def test_an_engine_of_the_users_own_is_probed_at_its_port() -> None:
    service = make_service(optimize=ServiceOptimize(BackendName.EXTERNAL))
    assert "tcpSocket" in worker(service_job(create(service)))["readinessProbe"]


@pytest.mark.parametrize(
    ("milliseconds", "own", "backend", "grace_seconds"),
    [
        (100, {}, BackendName.AUTO, None),
        (60_000, {}, BackendName.AUTO, 67),
        (60_000, {"terminationGracePeriodSeconds": 90}, BackendName.AUTO, 90),
        (60_000, {}, BackendName.EXTERNAL, None),
    ],
)
def test_a_long_objective_has_a_grace_for_its_queue(
    milliseconds: float, own: dict[str, Any], backend: BackendName, grace_seconds: int | None
) -> None:
    service = make_service(
        template=make_template(**own),
        objective=Objective(milliseconds),
        optimize=ServiceOptimize(backend),
    )
    spec = service_job(create(service))["spec"]["template"]["spec"]
    assert spec.get("terminationGracePeriodSeconds") == grace_seconds


def test_a_probe_of_the_users_own_stays() -> None:
    template = make_template()
    own = {"httpGet": {"path": "/health", "port": 1}}
    template["spec"]["containers"][0]["readinessProbe"] = own
    assert worker(service_job(create(make_service(template=template))))["readinessProbe"] == own


def test_a_replica_prefers_other_nodes_than_those_of_the_others() -> None:
    given = replace(create(make_service()), avoid_nodes=("n0", "n1"))
    spec = service_job(given)["spec"]["template"]["spec"]
    preferred = preferred_affinity(spec)
    assert required_affinity(spec) == ()
    for node, is_preferred in (("n0", False), ("n1", False), ("n2", True)):
        assert (not affinity_mismatch(preferred, node, {})) is is_preferred


def test_compiled_models_lie_in_the_claim() -> None:
    manifest = service_job(create(make_service(artifacts_claim_name="cache")))
    container = worker(manifest)
    [mount] = container["volumeMounts"]
    assert env(container)["GPUJOB_SERVING_CACHE"] == mount["mountPath"]
    [volume] = manifest["spec"]["template"]["spec"]["volumes"]
    assert volume["persistentVolumeClaim"] == {"claimName": "cache"}


def test_the_service_selects_the_pods_of_replicas_and_no_measurement() -> None:
    service = make_service()
    selector = core_service(service)["spec"]["selector"]
    found = {}
    for role in Role:
        job = placed(read_job(create(service, role), f"uid-{role.value}", T0))
        job = replace(job, metadata=replace(job.metadata, labels={}))  # Its user may edit them.
        pod = worker_pod(CreatePod(job, 0, Settings(), None), Configuration())
        labels = pod["metadata"]["labels"]
        found[role] = selector.items() <= labels.items()
        if role is Role.REPLICA:
            assert labels[LABEL_SERVICE] == "answers"
            assert labels[LABEL_REVISION] == "0a1b2c"
    assert found == {Role.REPLICA: True, Role.MEASUREMENT: False}


def test_a_job_that_no_service_owns_gets_no_such_label() -> None:
    job = placed(read_job(create(make_service()), "uid-1", T0))
    job = replace(job, metadata=replace(job.metadata, owner_references=()))
    pod = worker_pod(CreatePod(job, 0, Settings(), None), Configuration())
    assert LABEL_SERVICE_UID not in pod["metadata"]["labels"]
