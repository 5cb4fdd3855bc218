"""The pod of one worker: what it is called, where it goes, what it knows, what it may not do."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import DisruptionPolicy, GPUJob, Reservation, ReservationSource, SpotPolicy
from gpujob_api.quantities import GIB
from gpujob_api.settings import Settings
from gpujob_operator.decide.model.configuration import Configuration, DeviceAccess
from gpujob_operator.decide.model.plan import CreatePod
from gpujob_operator.read.job_specs import JobSpecs
from gpujob_operator.render.pod import worker_pod
from gpujob_operator.render.service import gang_service
from tests.harness.builders import capped, make_job, make_template, placed, reserve

CONFIGURATION = Configuration(report_url="http://operator:8080/report")


def pod_of(job: GPUJob, rank: int = 0, configuration: Configuration = CONFIGURATION) -> Any:
    return worker_pod(CreatePod(job, rank, Settings()), configuration)


def environment(pod: Any) -> dict[str, Any]:
    worker = next(c for c in pod["spec"]["containers"] if c["name"] == "worker")
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in worker["env"]}


def test_name_labels_and_owner_follow_from_job_attempt_and_rank() -> None:
    """I3, I7: a second create is refused by name, and the garbage collector knows the owner."""
    metadata = pod_of(placed(make_job("train"), attempt=3))["metadata"]
    assert metadata["name"] == "train-3-0"
    assert metadata["labels"] == {
        "gpujob.dev/job": "train",
        "gpujob.dev/job-uid": "uid-train",
        "gpujob.dev/attempt": "3",
        "gpujob.dev/rank": "0",
    }
    assert metadata["annotations"]["gpujob.dev/gpus"] == "GPU-0"
    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("GPUJob", "uid-train", True)
    assert owner["blockOwnerDeletion"] is False


def test_autoscalers_are_told_what_the_policy_says() -> None:
    keep = {
        "karpenter.sh/do-not-disrupt": "true",
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    }
    given = pod_of(placed(make_job("train")))["metadata"]["annotations"]
    assert given == {**keep, "gpujob.dev/gpus": "GPU-0"}
    may_move = placed(make_job("train", disruption=DisruptionPolicy.ALLOW))
    assert pod_of(may_move)["metadata"]["annotations"] == {"gpujob.dev/gpus": "GPU-0"}
    # The template has the last word.
    template = make_template() | {
        "metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "30m"}}
    }
    own = pod_of(placed(make_job("train", template=template)))["metadata"]["annotations"]
    assert own["karpenter.sh/do-not-disrupt"] == "30m"


def test_a_job_that_may_use_spot_nodes_tolerates_their_taints() -> None:
    def keys(policy: SpotPolicy) -> set[str]:
        job = placed(make_job("train", spot=policy))
        return {one.get("key") for one in pod_of(job)["spec"]["tolerations"]}

    taints = {
        "kubernetes.azure.com/scalesetpriority",
        "cloud.google.com/gke-spot",
        "cloud.google.com/gke-preemptible",
        "oci.oraclecloud.com/oke-is-preemptible",
    }
    assert taints < keys(SpotPolicy.PREFER)
    assert not taints & keys(SpotPolicy.NEVER)


def test_autoscalers_are_told_the_node_by_its_label() -> None:
    """Karpenter reads no names of nodes when it considers where else a pod could run."""

    def terms(hostname: str | None, affinity: dict[str, Any]) -> Any:
        job = placed(make_job("train", template=make_template(affinity=affinity)))
        pod = worker_pod(CreatePod(job, 0, Settings(), hostname), CONFIGURATION)
        rule = "requiredDuringSchedulingIgnoredDuringExecution"
        return pod["spec"]["affinity"]["nodeAffinity"][rule]["nodeSelectorTerms"]

    name = {"key": "metadata.name", "operator": "In", "values": ["n0"]}
    label = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["host-7"]}
    assert terms("host-7", {}) == [{"matchFields": [name], "matchExpressions": [label]}]
    assert terms(None, {}) == [{"matchFields": [name]}]
    rule = "requiredDuringSchedulingIgnoredDuringExecution"
    own = {"key": "zone", "operator": "Exists"}
    wanted = {"nodeSelectorTerms": [{"matchExpressions": [own]}]}
    assert terms("host-7", {"nodeAffinity": {rule: wanted}}) == [
        {"matchFields": [name], "matchExpressions": [own, label]}
    ]


def test_the_worker_is_told_its_gpu_and_all_of_the_contract() -> None:
    known = environment(pod_of(placed(make_job("train"))))
    assert known["NVIDIA_VISIBLE_DEVICES"] == "GPU-0"
    assert known["GPUJOB_ATTEMPT"] == "1"
    assert known["GPUJOB_GRACE_SECONDS"] == "30"
    assert known["GPUJOB_REPORT_URL"] == "http://operator:8080/report"
    assert known["GPUJOB_CHECKPOINT_DIR"].endswith("/train-uid-trai")
    assert known["GPUJOB_POD_UID"] == {"fieldRef": {"fieldPath": "metadata.uid"}}
    assert Settings.from_text(known["GPUJOB_SETTINGS"]) == Settings()


@pytest.mark.parametrize(
    ("source", "exclusive", "limited"),
    [
        (ReservationSource.WHOLE_GPU, False, False),
        (ReservationSource.WHOLE_GPU, True, False),
        (ReservationSource.HINT, False, True),
        (ReservationSource.PROFILE, False, True),
        (ReservationSource.MEASURED, False, True),
    ],
)
def test_only_who_shares_a_gpu_has_a_memory_limit(
    source: ReservationSource, exclusive: bool, limited: bool
) -> None:
    """I1: a worker that shares stays within what it holds; alone it may use all of the GPU."""
    job = placed(make_job(), held=reserve(GIB, source, exclusive=exclusive))
    limit = environment(pod_of(job)).get("GPUJOB_MEMORY_LIMIT_BYTES")
    assert limit == (str(GIB) if limited else None)


@pytest.mark.parametrize("asked_gib", [None, 1, 4, 20])
@pytest.mark.parametrize(
    ("held", "limit_gib"), [(capped(4 * GIB, 5 * GIB), 4), (reserve(5 * GIB), 5)]
)
def test_a_worker_may_use_its_cap_whatever_is_reserved_for_its_context(
    held: Reservation, limit_gib: int, asked_gib: int | None
) -> None:
    """The cap that its attempt was placed with: all workers of a gang get the same one, also those
    whose pods are created after an edit of the spec."""
    asked_bytes = asked_gib * GIB if asked_gib is not None else None
    job = placed(make_job(memory_bytes=asked_bytes), held=held)
    assert environment(pod_of(job))["GPUJOB_MEMORY_LIMIT_BYTES"] == str(limit_gib * GIB)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"value": "/app:/lib"}, {"value": "/opt/gpujob/hook:/app:/lib"}),
        ({"value": ""}, {"value": "/opt/gpujob/hook"}),
        ({}, {"value": "/opt/gpujob/hook"}),
        ({"value": "/app:/opt/gpujob/hook"}, {"value": "/app:/opt/gpujob/hook"}),
        (
            {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ),
    ],
)
def test_a_path_of_the_users_own_keeps_the_hook(
    entry: dict[str, Any], expected: dict[str, Any]
) -> None:
    template = make_template()
    template["spec"]["containers"][0]["env"] = [{"name": "PYTHONPATH", **entry}]
    env = pod_of(placed(make_job(template=template)))["spec"]["containers"][0]["env"]
    assert [e for e in env if e["name"] == "PYTHONPATH"] == [{"name": "PYTHONPATH", **expected}]


def test_without_a_path_of_the_users_own_the_images_stays() -> None:
    assert "PYTHONPATH" not in environment(pod_of(placed(make_job())))


def test_other_containers_get_no_gpu() -> None:
    """I2: an image made for CUDA asks for all GPUs; only the worker gets any."""
    template = make_template()
    packed = {"name": "side", "image": "x", "env": [{"name": "A", "value": "1"}]}
    template["spec"]["containers"].append(packed)
    template["spec"]["initContainers"] = [{"name": "first", "image": "x"}]
    spec = pod_of(placed(make_job(template=template)))["spec"]
    void = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
    assert spec["containers"][1]["env"] == [{"name": "A", "value": "1"}, void]
    assert spec["initContainers"][0]["env"] == [void]


def test_the_pod_passes_pod_security_restricted_and_has_no_api_token() -> None:
    """I12."""
    spec = pod_of(placed(make_job()))["spec"]
    assert spec["automountServiceAccountToken"] is False
    security = spec["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    container = spec["containers"][0]["securityContext"]
    assert container == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    (token,) = [v for v in spec["volumes"] if v["name"] == "gpujob-token"]
    (source,) = token["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == "gpujob"


def worker_mounts(spec: Any) -> dict[str, str]:
    worker = next(c for c in spec["containers"] if c["name"] == "worker")
    return {mount["mountPath"]: mount["name"] for mount in worker["volumeMounts"]}


def test_a_large_volume_is_not_walked_at_each_start() -> None:
    """The kubelet looks at the volume's root alone, unless the template says otherwise."""

    def policy(**security: Any) -> str:
        template = make_template(securityContext=security)
        create = CreatePod(placed(make_job(template=template)), 0, Settings())
        return worker_pod(create, Configuration())["spec"]["securityContext"]["fsGroupChangePolicy"]

    assert policy() == "OnRootMismatch"
    assert policy(fsGroupChangePolicy="Always") == "Always"


def test_the_worker_has_room_for_shared_memory() -> None:
    """A container's own /dev/shm has 64 MiB: two batches of a data loader end it with SIGBUS."""
    template = make_template()
    template["spec"]["containers"].append({"name": "side", "image": "x"})
    spec = pod_of(placed(make_job(template=template)))["spec"]
    name = worker_mounts(spec)["/dev/shm"]
    (volume,) = [v for v in spec["volumes"] if v["name"] == name]
    assert volume == {"name": name, "emptyDir": {"medium": "Memory"}}
    assert "volumeMounts" not in spec["containers"][1]


@pytest.mark.parametrize("path", ["/dev/shm", "/dev/shm/"])
def test_shared_memory_of_the_users_own_stays(path: str) -> None:
    own = {"name": "own", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}
    template = make_template(volumes=[own])
    template["spec"]["containers"][0]["volumeMounts"] = [{"name": "own", "mountPath": path}]
    spec = pod_of(placed(make_job(template=template)))["spec"]
    assert worker_mounts(spec)[path] == "own"
    assert [v for v in spec["volumes"] if v.get("emptyDir", {}).get("medium")] == [own]


@pytest.mark.parametrize(("named", "expected"), [("nvidia", "nvidia"), ("", None), (None, None)])
def test_an_empty_runtime_class_is_none(named: str | None, expected: str | None) -> None:
    """The API server refuses a pod whose runtime class is the empty string."""
    configuration = replace(CONFIGURATION, runtime_class_name=named)
    spec = pod_of(placed(make_job()), configuration=configuration)["spec"]
    assert spec.get("runtimeClassName") == expected


def test_it_goes_to_the_chosen_node_within_the_users_own_affinity() -> None:
    wanted = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    rule = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = {"nodeAffinity": {rule: {"nodeSelectorTerms": [wanted]}}, "podAffinity": {"x": 1}}
    for given in ({}, affinity):
        job = placed(make_job(template=make_template(affinity=given)))
        after = pod_of(job)["spec"]["affinity"]
        (term,) = after["nodeAffinity"][rule]["nodeSelectorTerms"]
        assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["n0"]}]
        assert term.get("matchExpressions") == (wanted["matchExpressions"] if given else None)
        assert after.get("podAffinity") == given.get("podAffinity")


def test_the_users_template_is_not_changed() -> None:
    job = placed(make_job())
    before = repr(job.spec.template)
    pod_of(job)
    assert repr(job.spec.template) == before


def test_parts_that_a_template_has_twice_are_completed_each_for_itself() -> None:
    """Equal parts of the templates that were read are one object."""
    both = {"image": "image:1", "resources": {"limits": {"cpu": "1"}}, "securityContext": {}}
    template = make_template(
        containers=[{"name": "worker", **both}, {"name": "logs", **both}], securityContext={}
    )
    read = JobSpecs().read({"template": template}).template
    worker, logs = read["spec"]["containers"]
    assert worker["resources"]["limits"] is logs["resources"]["limits"], "nothing is shared"
    plugin = replace(CONFIGURATION, device_access=DeviceAccess.DEVICE_PLUGIN)
    pods = [
        pod_of(placed(make_job(template=dict(one))), configuration=plugin)
        for one in (read, json.loads(json.dumps(template)))
    ]
    assert pods[0] == pods[1]
    _, logs = pods[0]["spec"]["containers"]
    assert logs["resources"] == {"limits": {"cpu": "1"}}


def gang() -> GPUJob:
    return placed(make_job("gang", workers=2), ("n0", ("GPU-0",)), ("n1", ("GPU-1",)))


def test_a_gang_knows_its_ranks_and_master() -> None:
    pods = [pod_of(gang(), rank) for rank in (0, 1)]
    known = [environment(pod) for pod in pods]
    assert [(one["RANK"], one["WORLD_SIZE"]) for one in known] == [("0", "2"), ("1", "2")]
    assert "RANK" not in environment(pod_of(placed(make_job())))
    # The name that a cluster's DNS makes of rank 0's hostname and the Service's name.
    master = f"{pods[0]['spec']['hostname']}.{pods[0]['spec']['subdomain']}.team.svc"
    assert {one["MASTER_ADDR"] for one in known} == {master}
    (port,) = {int(one["MASTER_PORT"]) for one in known}
    assert 20_000 <= port < 32_768
    again = replace(gang(), status=replace(gang().status, attempt=2))
    assert environment(pod_of(again))["MASTER_PORT"] != str(port)


def test_a_gangs_service_names_its_pods_and_goes_with_the_job() -> None:
    service = gang_service(gang())
    pod = pod_of(gang(), rank=1)
    assert service["metadata"]["name"] == pod["spec"]["subdomain"]
    assert service["metadata"]["ownerReferences"] == pod["metadata"]["ownerReferences"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()


def test_names_of_a_gang_are_valid_however_long_its_own_is() -> None:
    job = make_job("a" * 52, uid="01234567-89ab-cdef-0123-456789abcdef", workers=2)
    spec = pod_of(placed(job, ("n0", ("GPU-0",)), ("n1", ("GPU-1",))), rank=1)["spec"]
    for label in (spec["hostname"], spec["subdomain"]):
        assert re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", label)


def test_without_a_claim_checkpoints_stay_with_the_pod() -> None:
    for claim, source in (
        (None, {"emptyDir": {}}),
        ("ckpt", {"persistentVolumeClaim": {"claimName": "ckpt"}}),
    ):
        spec = pod_of(placed(make_job(claim=claim)))["spec"]
        (volume,) = [v for v in spec["volumes"] if v["name"] == "gpujob-checkpoints"]
        assert volume == {"name": "gpujob-checkpoints", **source}


def test_with_the_device_plugin_the_kubelet_picks_the_gpu() -> None:
    """A variable of the template would win over the plugin's, and give the pod any GPU."""
    configuration = Configuration(device_access=DeviceAccess.DEVICE_PLUGIN)
    template = make_template()
    greedy = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
    template["spec"]["containers"][0]["env"] = [greedy]
    pod = pod_of(placed(make_job(template=template)), configuration=configuration)
    assert "NVIDIA_VISIBLE_DEVICES" not in environment(pod)
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
