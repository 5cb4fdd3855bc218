"""No field of the spec of a GPUJob, a GPUQueue or a GPUService is without effect: for each one of
the schemas, two values of it make the operator decide, or the worker do, different things.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob
from gpujob_api.gpuqueue import GPUQueue
from gpujob_api.gpuservice import GPUService
from tests.effects import plans, services, workers
from tests.effects.effect import Effect, Json, job_of, leaves, queue_of
from tests.harness.crds import Schema, schema_of

SHORT: Json = {"template": None, "image": "trainer", "env": [{"name": "A", "value": "1"}]}
SAVED = {"checkpoint.path": "saved/*.pt"}
JOB: Mapping[str, Effect] = {
    "workload": Effect(plans.beside_a_profile, None, "resnet"),
    "queue": Effect(plans.placed, None, "closed"),
    "priority": Effect(plans.beside_another, None, 5, {"sharing.mode": "Exclusive"}),
    "suspend": Effect(plans.placed, None, True),
    "ttlSecondsAfterFinished": Effect(plans.long_finished, None, 60),
    "workers": Effect(plans.placed, None, 2),
    "gpusPerWorker": Effect(plans.placed, None, 2),
    "gpus": Effect(plans.placed, "1", 2),
    "image": Effect(workers.pod, None, "other", SHORT),
    "command": Effect(workers.pod, None, ["python", "train.py"], SHORT),
    "args": Effect(workers.pod, None, ["--lr"], SHORT),
    "env.0.name": Effect(workers.pod, None, "B", SHORT),
    "env.0.value": Effect(workers.pod, None, "2", SHORT),
    "env.0.valueFrom": Effect(workers.pod, None, {"configMapKeyRef": {}}, SHORT),
    "gpu.memory": Effect(plans.placed, None, "100Gi"),
    "gpu.models": Effect(plans.placed, None, ["NVIDIA H100"]),
    "sharing.mode": Effect(plans.placed, None, "Exclusive"),
    "sharing.maxSlowdownPercent": Effect(plans.beside_a_busy_one, 0, 100),
    "optimize.mode": Effect(workers.optimizes, None, "Off"),
    "optimize.task": Effect(workers.watches_calls, None, "Training"),
    "optimize.precision": Effect(workers.precision, "tf32", "float32"),
    "optimize.batchSize.total": Effect(workers.split_step, 8, 16),
    "optimize.batchSize.perStep": Effect(workers.split_step, None, 2),
    "optimize.activationCheckpointing": Effect(workers.activation_checkpointing, None, "Off"),
    "optimize.compile": Effect(workers.compilation, None, "Off"),
    "optimize.dataLoading": Effect(workers.data_loading, None, "Off"),
    "checkpoint.volumeClaimName": Effect(workers.pod, None, "ckpt"),
    "checkpoint.interval": Effect(workers.interval_seconds, None, "7m"),
    "checkpoint.keep": Effect(workers.checkpoints, None, 5),
    "checkpoint.path": Effect(
        workers.resume_arguments,
        "elsewhere/*.pt",
        "saved/*.pt",
        {"checkpoint.resumeArguments": ["-r"]},
    ),
    "checkpoint.resumeArguments": Effect(workers.resume_arguments, None, ["--from={path}"], SAVED),
    "checkpoint.resume": Effect(workers.pod, None, "BestEffort"),
    "spot.policy": Effect(
        plans.on_a_spot_node, None, "Never", {"checkpoint.volumeClaimName": "ckpt"}
    ),
    "disruption": Effect(workers.pod, None, "Allow"),
    "retry.limit": Effect(plans.failed, None, 0),
    "retry.hangTimeoutSeconds": Effect(plans.silent, None, 3600),
    # One container must be called worker; this is another one.
    "template.spec.containers.0.name": Effect(
        workers.pod,
        None,
        "other",
        {"template.spec.containers": [{"name": "side"}, {"name": "worker"}]},
    ),
}
QUEUE: Mapping[str, Effect] = {
    "weight": Effect(plans.beside_another_queue, 1, 1000),
    "parent": Effect(plans.under_a_parent, None, "parent", {"nominal.gpus": 1}),
    "namespaces": Effect(plans.admitted, None, ["team"]),
    "sharingGroup": Effect(plans.on_a_gpu_of_another_queue, None, "lab"),
    "priority.minimum": Effect(plans.admitted, None, 0),
    "priority.maximum": Effect(plans.admitted, None, 0),
    "nominal.gpus": Effect(plans.admitted, None, 2),
    "nominal.gpuMemory": Effect(plans.admitted, None, "30Gi"),
    "borrowingLimit.gpus": Effect(
        plans.under_a_parent, None, 0, {"parent": "parent", "nominal.gpus": 1}
    ),
    "borrowingLimit.gpuMemory": Effect(
        plans.under_a_parent, None, "1Gi", {"parent": "parent", "nominal.gpuMemory": "30Gi"}
    ),
}
_AT_ZERO = {"replicas.minimum": 0, "optimize.backend": "Eager"}
# The template is that of the replicas' jobs, whose fields act above.
SERVICE: Mapping[str, Effect] = {
    "workload": Effect(services.created, None, "resnet"),
    "queue": Effect(services.created, None, "closed"),
    "priority": Effect(services.created, None, 5),
    "port": Effect(services.created, None, 9000),
    "objective.latencyMilliseconds": Effect(services.created, None, 50),
    "objective.percentile": Effect(services.created, None, 95),
    "replicas.minimum": Effect(services.created, None, 2),
    "replicas.maximum": Effect(services.under_load, None, 2),
    "replicas.stopAfterSeconds": Effect(services.without_requests, None, 60, _AT_ZERO),
    "replicas.parkAfterSeconds": Effect(services.parked, None, 60, _AT_ZERO),
    "replicas.coldStartSeconds": Effect(services.held, None, 30, _AT_ZERO),
    "gpu.memory": Effect(services.created, None, "1Gi"),
    "gpu.models": Effect(services.created, None, ["H100"]),
    "sharing.mode": Effect(services.created, None, "Exclusive"),
    "sharing.maxSlowdownPercent": Effect(services.created, None, 50),
    "optimize.backend": Effect(services.created, None, "Compile"),
    "optimize.precision": Effect(services.created, None, "bfloat16"),
    "optimize.quantization": Effect(services.created, None, "int8"),
    "optimize.batching.policy": Effect(services.created, None, "Deadline"),
    "optimize.batching.maxSize": Effect(services.created, None, 8),
    "optimize.accuracy.maxRelativeErrorPercent": Effect(services.created, None, 5),
    "optimize.accuracy.minAgreementPercent": Effect(services.created, None, 90),
    "optimize.accuracy.maxDropPercent": Effect(services.created, None, 5),
    "spot.policy": Effect(services.created, None, "Never"),
    "artifactsClaimName": Effect(services.created, None, "artifacts"),
    "suspend": Effect(services.created, None, True),
}
# A pod template with one entry in each list whose entries have fields of their own.
_CONTAINER = {
    "name": "first",
    "image": "init",
    "env": [{"name": "A", "value": "1"}],
    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
}
TEMPLATE: Json = {
    "template.spec.containers": [{**_CONTAINER, "name": "worker"}, {**_CONTAINER, "name": "side"}],
    "template.spec.initContainers": [_CONTAINER],
    "template.spec.volumes": [{"name": "data"}],
    "template.spec.tolerations": [{}],
    "template.spec.imagePullSecrets": [{}],
}


def of_template(schema: Schema) -> Effect:
    """A field of the template is in the pod as it was given."""
    return Effect(workers.pod, None, sample(schema), TEMPLATE)


def sample(schema: Schema) -> object:
    if "enum" in schema:
        return schema["enum"][0]
    kinds: Mapping[str | None, object] = {
        "integer": schema.get("minimum", 1),
        "boolean": True,
        "array": [{"key": "value"}] if schema.get("items", {}).get("type") != "string" else ["a"],
        "object": {"podAffinity": {}},
        "string": "other",
        None: "1",
    }
    return kinds[schema.get("type")]


def fixed(schema: Schema) -> bool:
    """The API server accepts one value at most: it is the pod's, whether the user repeats it."""
    rules = {rule["rule"] for rule in schema.get("x-kubernetes-validations", ())}
    return len(schema.get("enum", ())) == 1 or bool(rules & {"!self", "false"})


# In the worker's container and pod these are always the value that alone is accepted.
FIXED: Mapping[str, object] = {
    "template.spec.restartPolicy": "Never",
    "template.spec.automountServiceAccountToken": False,
    "template.spec.containers.0.terminationMessagePath": "/dev/termination-log",
    **{
        f"template.spec.{kind}.0.resources.{list_}.nvidia.com/gpu": None
        for kind in ("containers", "initContainers")
        for list_ in ("limits", "requests")
    },
}


def spec_leaves(kind: type) -> dict[str, Schema]:
    return dict(leaves(schema_of(kind)["properties"]["spec"]))


def effects(schemas: Mapping[str, Schema], table: Mapping[str, Effect]) -> dict[str, Effect]:
    """The effect of each field; those of a template are derived from its schema."""
    found = dict(table)
    for path, schema in schemas.items():
        if path.startswith("template.") and path not in FIXED:
            found.setdefault(path, of_template(schema))
    return found


def without_effect(schemas: Iterable[str], table: Mapping[str, Effect]) -> list[str]:
    return sorted(set(schemas) - set(table) - set(FIXED))


JOB_LEAVES, QUEUE_LEAVES = spec_leaves(GPUJob), spec_leaves(GPUQueue)
JOB_EFFECTS, QUEUE_EFFECTS = effects(JOB_LEAVES, JOB), effects(QUEUE_LEAVES, QUEUE)
SERVICE_LEAVES = {
    path: schema
    for path, schema in spec_leaves(GPUService).items()
    if not path.startswith("template.")
}


def test_every_field_of_the_schemas_has_an_effect_to_show() -> None:
    assert without_effect(JOB_LEAVES, JOB_EFFECTS) == []
    assert without_effect(QUEUE_LEAVES, QUEUE_EFFECTS) == []
    assert set(JOB_EFFECTS) | set(FIXED) == set(JOB_LEAVES), "an effect of a field that is gone"
    assert set(QUEUE_EFFECTS) == set(QUEUE_LEAVES), "an effect of a field that is gone"
    assert set(SERVICE) == set(SERVICE_LEAVES)


def test_a_new_field_without_an_effect_is_found() -> None:
    with_new = {**JOB_LEAVES, "spot.deadline": {"type": "string"}}
    assert without_effect(with_new, effects(with_new, JOB)) == ["spot.deadline"]


def test_a_value_that_changes_nothing_is_no_effect() -> None:
    """A job alone on its GPU: its priority decides nothing there."""
    one, other = Effect(plans.placed, None, 5).seen("priority", job_of)
    assert one == other


@pytest.mark.parametrize("path", sorted(JOB_EFFECTS))
def test_a_field_of_a_job_acts(path: str) -> None:
    one, other = JOB_EFFECTS[path].seen(path, job_of)
    assert one != other


@pytest.mark.parametrize("path", sorted(QUEUE_EFFECTS))
def test_a_field_of_a_queue_acts(path: str) -> None:
    one, other = QUEUE_EFFECTS[path].seen(path, queue_of)
    assert one != other


@pytest.mark.parametrize("path", sorted(SERVICE))
def test_a_field_of_a_service_acts(path: str) -> None:
    one, other = SERVICE[path].seen(path, services.service_of)
    assert one != other


def test_what_is_seen_of_a_service_does_not_differ_by_itself() -> None:
    for looks in {effect.looks for effect in SERVICE.values()}:
        one, other = Effect(looks, None, None, _AT_ZERO).seen("queue", services.service_of)
        assert one == other


@pytest.mark.parametrize("path", sorted(FIXED))
def test_what_cannot_be_chosen_is_refused_or_as_it_always_is(path: str) -> None:
    assert fixed(JOB_LEAVES[path])
    value: Any = workers.pod(job_of(TEMPLATE))
    *ways, last = path.removeprefix("template.").split(".", maxsplit=5)
    for step in ways:
        value = value[int(step)] if isinstance(value, list) else value.get(step, {})
    assert value.get(last) == FIXED[path]
