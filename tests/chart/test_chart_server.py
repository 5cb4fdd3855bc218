"""The rendered chart against a real API server: schemas, Pod Security, admission (promise I12)."""

import base64
import json
import time
from collections.abc import Generator, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import yaml

from gpujob_api.gpujob import GPUJob
from gpujob_api.manifest import from_manifest
from gpujob_api.settings import Settings
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.plan import CreatePod
from gpujob_operator.render.gate import gate_pod
from gpujob_operator.render.pod import worker_pod
from tests.harness.chart import ALL_ON, Manifest, named, of_kind, pod_spec, render
from tests.harness.cluster import RunningControlPlane
from tests.harness.services import make_service

pytestmark = pytest.mark.cluster
ADMISSION_SECONDS_MAX = 30.0
FOREIGN = {"ServiceMonitor", "PrometheusRule"}
PLACEMENT = {"workers": [{"rank": 0, "node": "node-a", "gpus": ["GPU-1a"]}]}


def restrict(control_plane: RunningControlPlane, namespace: str, level: str) -> None:
    label = f"pod-security.kubernetes.io/enforce={level}"
    control_plane.kubectl("label", "--overwrite", "namespace", namespace, label)


def dry_run(
    control_plane: RunningControlPlane, namespace: str, objects: Iterable[Manifest]
) -> "tuple[int, str]":
    text = yaml.safe_dump_all(list(objects))
    arguments = ["apply", "--server-side", "--dry-run=server", "--validate=strict"]
    # The fixture's CRDs are applied by another manager; only their content matters here.
    arguments += ["--force-conflicts", "--namespace", namespace, "--filename", "-"]
    done = control_plane.kubectl(*arguments, stdin=text, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def accounts(control_plane: RunningControlPlane, namespace: str) -> str:
    """The namespace, with the release's service accounts: a pod without its account is refused."""
    text = yaml.safe_dump_all(of_kind(render(), "ServiceAccount"))
    control_plane.kubectl("apply", "--namespace", namespace, "--filename", "-", stdin=text)
    return namespace


def as_pod(workload: Manifest) -> Manifest:
    template = workload["spec"]["template"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe", "labels": template["metadata"]["labels"]},
        # The class is the cluster's business; the API server knows none here.
        "spec": {k: v for k, v in template["spec"].items() if k != "runtimeClassName"},
    }


@pytest.mark.parametrize(
    "values", [{}, ALL_ON, {"agent": {"devices": "cpu"}}], ids=["defaults", "all on", "CPU cards"]
)
def test_the_server_takes_every_object(
    control_plane: RunningControlPlane, accounts: str, values: Mapping[str, Any]
) -> None:
    objects = [found for found in render(values) if found["kind"] not in FOREIGN]
    code, text = dry_run(control_plane, accounts, objects)
    assert code == 0, text


def test_the_server_takes_the_job_of_helm_test(
    control_plane: RunningControlPlane, namespace: str
) -> None:
    """As JSON in a variable of the test's pod it is checked by nobody else."""
    environment = pod_spec(named(render(ALL_ON), "Pod", "job-test"))["containers"][0]["env"]
    (text,) = [entry["value"] for entry in environment if entry["name"] == "JOB"]
    job = json.loads(text)
    job["metadata"]["namespace"] = namespace
    code, said = dry_run(control_plane, namespace, [job])
    assert code == 0, said


@pytest.mark.promise("I12")
def test_a_restricted_namespace_takes_the_operators_pod(
    control_plane: RunningControlPlane, accounts: str
) -> None:
    restrict(control_plane, accounts, "restricted")
    (deployment,) = of_kind(render(), "Deployment")
    code, text = dry_run(control_plane, accounts, [as_pod(deployment)])
    assert code == 0, text


def test_a_restricted_namespace_refuses_the_agent_for_its_process_namespace_only(
    control_plane: RunningControlPlane, accounts: str
) -> None:
    (daemon_set,) = of_kind(render(), "DaemonSet")
    restrict(control_plane, accounts, "restricted")
    code, text = dry_run(control_plane, accounts, [as_pod(daemon_set)])
    assert code != 0
    assert "host namespaces (hostPID=true)" in text
    assert text.count('violates PodSecurity "restricted:latest"') == 1
    assert "securityContext" not in text
    restrict(control_plane, accounts, "privileged")
    assert dry_run(control_plane, accounts, [as_pod(daemon_set)])[0] == 0


@pytest.mark.promise("I12")
def test_a_restricted_namespace_takes_a_workers_pod(
    control_plane: RunningControlPlane, namespace: str
) -> None:
    restrict(control_plane, namespace, "restricted")
    template = {"spec": {"containers": [{"name": "worker", "image": "worker"}]}}
    job = from_manifest(
        GPUJob,
        {
            "metadata": {"name": "probe", "namespace": namespace, "uid": "0000-1111"},
            "spec": {"template": template},
            "status": {"phase": "Starting", "attempt": 1, "placement": PLACEMENT},
        },
    )
    pod = worker_pod(CreatePod(job, 0, Settings()), Configuration(report_url="http://reports"))
    code, text = dry_run(control_plane, namespace, [pod])
    assert code == 0, text


@pytest.mark.promise("I12")
def test_a_restricted_namespace_takes_a_gate(
    control_plane: RunningControlPlane, namespace: str
) -> None:
    restrict(control_plane, namespace, "restricted")
    service = make_service()
    service = replace(service, metadata=replace(service.metadata, namespace=namespace))
    configuration = Configuration(report_url="http://reports", gate_image="operator:1")
    code, text = dry_run(control_plane, namespace, [gate_pod(service, 0, configuration)])
    assert code == 0, text


@pytest.fixture
def agent_token(control_plane: RunningControlPlane, accounts: str) -> Generator[str]:
    """A token such as the kubelet mounts into an agent's pod on node-a."""
    objects = render({"crds": {"install": False}})
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    wanted = of_kind(objects, *kinds, "ClusterRole", "ClusterRoleBinding")
    text = yaml.safe_dump_all(wanted).replace("gpujob-system", accounts)
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "agent", "namespace": accounts},
        "spec": {
            "nodeName": "node-a",
            "serviceAccountName": "gpujob-agent",
            "containers": [{"name": "agent", "image": "gpujob-operator"}],
        },
    }
    kubectl = control_plane.kubectl
    kubectl("apply", "--filename", "-", stdin=text)
    kubectl("apply", "--filename", "-", stdin=yaml.safe_dump_all([node, pod]))
    bound = ["--bound-object-kind", "Pod", "--bound-object-name", "agent"]
    token = kubectl("create", "token", "gpujob-agent", "--namespace", accounts, *bound).stdout
    yield token.strip()
    kubectl("delete", "--ignore-not-found", "--filename", "-", stdin=text)
    kubectl("delete", "--wait=false", "--ignore-not-found", "node/node-a", "gpunodes/node-a")


def create_gpunode(control_plane: RunningControlPlane, token: str, name: str) -> "tuple[int, str]":
    body = {"apiVersion": "gpujob.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": name}}
    done = control_plane.kubectl(
        *("--token", token, "create", "--filename", "-"), stdin=json.dumps(body), check=False
    )
    return done.returncode, done.stderr


@pytest.mark.promise("I12")
def test_an_agent_writes_the_gpunode_of_its_own_node_only(
    control_plane: RunningControlPlane, agent_token: str
) -> None:
    claims = agent_token.split(".")[1]
    body = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    assert body["kubernetes.io"]["node"]["name"] == "node-a"
    code, text, attempt = 0, "", 0
    deadline = time.monotonic() + ADMISSION_SECONDS_MAX
    # A new policy takes effect some moments after it is stored.
    while code == 0 and time.monotonic() < deadline:
        attempt += 1
        code, text = create_gpunode(control_plane, agent_token, f"node-b{attempt}")
    assert "an agent may write the GPUNode of its own node only" in text
    code, text = create_gpunode(control_plane, agent_token, "node-a")
    assert code == 0, text
