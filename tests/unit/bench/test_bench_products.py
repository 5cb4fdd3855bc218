"""The throughput benchmark's products: what is started for each kind of jobs, and when."""

import argparse
import base64
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.throughput import __main__ as throughput
from bench.throughput import kueue as kueues
from bench.throughput.figures import JobTimes, Outcome
from bench.throughput.kueue import Kueue
from bench.throughput.kueue_manifests import Ports
from bench.throughput.load import KINDS, KUEUE_JOBS, PLAIN_JOBS, Kind, Load
from bench.throughput.products import PRODUCTS, Nothing, OperatorAndAgents, Product
from bench.throughput.stack import PARTS, PLAYED, Stack
from gpujob_local.control_plane.api_client import ApiError

SECRET = "/api/v1/namespaces/kueue-system/secrets/kueue-webhook-server-cert"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: workloads.kueue.x-k8s.io}
spec:
  group: kueue.x-k8s.io
  names: {plural: workloads}
  versions: [{name: v1beta2, served: true, storage: true}]
"""
WEBHOOK = """
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: mutating-webhook-configuration}
webhooks:
- name: mjob.kb.io
  clientConfig: {service: {name: webhook-service, namespace: system, path: /mutate-batch-v1-job}}
  rules: [{apiGroups: [batch], apiVersions: [v1], operations: [CREATE], resources: [jobs]}]
"""
DEFAULT = "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n"
PATCH = """
metadata: {name: workloads.kueue.x-k8s.io}
spec:
  conversion:
    strategy: Webhook
    webhook: {clientConfig: {service: {path: /convert}}, conversionReviewVersions: [v1]}
"""


def sources(folder: Path) -> Path:
    """What is read of a Go module's sources."""
    for name, text in {
        "crd/bases/workloads.yaml": CRD,
        "crd/patches/workloads.yaml": PATCH,
        "crd/kustomization.yaml": "patches: [{path: patches/workloads.yaml}]\n",
        "webhook/manifests.yaml": WEBHOOK,
        "manager/controller_manager_config.yaml": DEFAULT,
    }.items():
        file = folder / "config" / "components" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


@dataclass
class FakeCluster:
    """An API server that keeps what it is given, and the processes that were started."""

    directory: Path
    said: list[str] = field(default_factory=list[str])
    objects: dict[str, Any] = field(default_factory=dict[str, Any])
    commands: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    nodes: int = 2
    gpus: int = 8

    @property
    def cluster(self) -> "FakeCluster":
        return self

    @property
    def client(self) -> "FakeCluster":
        return self

    @property
    def kubeconfig(self) -> Path:
        return self.directory / "admin.kubeconfig"

    def create(self, path: str, body: dict[str, Any]) -> None:
        self.apply(f"{path}/{body['metadata']['name']}", body)

    def apply(self, path: str, body: dict[str, Any]) -> None:
        self.said.append(f"create {path}")
        ready = [{"type": kind, "status": "True"} for kind in ("Established", "Active")]
        self.objects[path] = {**body, "status": {"conditions": ready}}

    def get(self, path: str, **parameters: str) -> dict[str, Any]:
        if path == f"{KUEUE}/workloads":
            return {"items": []}
        if path not in self.objects:
            raise ApiError(404, "NotFound", path)
        return self.objects[path]

    def check(self) -> None: ...

    def start_part(self, name: str, command: list[str]) -> None:
        """Kueue makes its certificates as soon as it runs."""
        self.said.append(f"start {name}")
        self.commands[name] = command
        if name == "kueue":
            made = {one: base64.b64encode(one.encode()) for one in ("tls.crt", "tls.key")}
            self.objects[SECRET]["data"] = made

    def start_operator(self) -> None:
        self.said.append("start operator")

    def start_agents(self) -> None:
        self.said.append("start agents")

    def operator_is_ready(self) -> bool:
        return True

    def measured_nodes(self) -> int:
        return self.nodes


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    def answer(port: int, path: str) -> str:
        assert (port, path) == (2, "/readyz")
        return "ok"

    monkeypatch.setattr(kueues, "loopback_get", answer)
    monkeypatch.setattr(kueues, "POLL_SECONDS", 0.0)
    return FakeCluster(tmp_path)


def kueue_of(cluster: FakeCluster, folder: Path) -> Kueue:
    stack: Any = cluster
    return Kueue(stack, Path("kueue"), sources(folder / "sources"), Ports(1, 2, 3))


async def test_kueue_is_installed_before_it_runs_and_has_queues_after(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    kueue = kueue_of(cluster, tmp_path)
    await kueue.start()
    await kueue.prepare("space")
    assert cluster.said == [
        f"create {CRDS}/workloads.kueue.x-k8s.io",
        "create /api/v1/namespaces/kueue-system",
        "create /api/v1/namespaces/kueue-system/services/kueue-webhook-service",
        f"create {SECRET}",
        f"create {ADMISSION}/mutatingwebhookconfigurations/kueue-mutating-webhook-configuration",
        "start kueue",
        f"create {KUEUE}/resourceflavors/bench",
        f"create {KUEUE}/clusterqueues/bench",
        f"create {KUEUE}/namespaces/space/localqueues/bench",
    ]


def files_of(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


def read_configuration(file: str) -> dict[str, Any]:
    return yaml.safe_load(Path(file).read_text())


async def test_kueue_finds_its_certificates_and_its_configuration(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    kueue = kueue_of(cluster, tmp_path)
    await kueue.start()
    options = dict(one.lstrip("-").split("=", 1) for one in cluster.commands["kueue"][1:])
    assert options["kubeconfig"] == str(cluster.kubeconfig)
    assert options["feature-gates"] == "VisibilityOnDemand=false"
    certificates = read_configuration(options["config"])["webhook"]["certDir"]
    assert files_of(Path(certificates)) == {"tls.crt": "tls.crt", "tls.key": "tls.key"}


async def test_agents_are_started_after_the_operator(cluster: FakeCluster) -> None:
    stack: Any = cluster
    product = OperatorAndAgents(stack)
    await product.start()
    await product.prepare("space")
    assert cluster.said == ["start operator", "start agents"]


async def test_plain_jobs_need_nothing(cluster: FakeCluster) -> None:
    stack: Any = cluster
    product = PRODUCTS[PLAIN_JOBS.name](stack)
    await product.start()
    await product.prepare("space")
    assert isinstance(product, Nothing)
    assert cluster.said == []


def test_each_kind_has_a_product_and_what_kueue_takes_is_the_stacks() -> None:
    assert PRODUCTS.keys() == KINDS.keys()
    assert "kueue" in PARTS
    assert "kueue" not in PLAYED


@dataclass
class FakeProduct:
    """Says what is asked of it."""

    said: list[str]

    async def start(self) -> None:
        self.said.append("start")

    async def prepare(self, namespace: str) -> None:
        self.said.append(f"prepare {namespace}")


async def played(
    kind: Kind, monkeypatch: pytest.MonkeyPatch, *arguments: str, stack: Any = None
) -> list[str]:
    """What happens around the jobs of one kind."""
    said: list[str] = []
    product: Product = FakeProduct(said)

    async def measure(
        stack: Stack, kube: Any, kind: Kind, load: Load, space: str, **more: Any
    ) -> Any:
        await more["prepare"](space)
        said.append(f"measure {space}")
        return Outcome(kind.name, {"a": JobTimes(0.0, 1.0, 2.0)}, {}, {})

    async def delete_all(stack: Stack, kind: Kind, space: str, load: Load) -> None:
        said.append(f"delete {space}")

    monkeypatch.setattr(throughput, "measure", measure)
    monkeypatch.setattr(throughput, "delete_all", delete_all)
    options: argparse.Namespace = throughput.parse(arguments)
    kube: Any = None
    await throughput.run_kind(stack, kube, kind, product, options)
    return said


async def test_what_happens_around_the_jobs_of_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    said = await played(KUEUE_JOBS, monkeypatch, "--kinds", "kueue,jobs", "--beside", "2")
    assert said == [
        "start",
        "prepare warm-up-kueue",
        "measure warm-up-kueue",
        "delete warm-up-kueue",
        "prepare measured-kueue",
        "measure measured-kueue",
    ]


def test_each_kind_has_a_control_plane_of_its_own(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def started(say: Any) -> Generator[FakeCluster]:
        cluster.said.append("control plane")
        yield cluster
        cluster.said.append("end")

    async def run(stack: Stack, kind: Kind, options: argparse.Namespace) -> Outcome:
        cluster.said.append(kind.name)
        return Outcome(kind.name, {}, {}, {})

    monkeypatch.setattr(throughput, "start_cluster", started)
    monkeypatch.setattr(throughput, "run_alone", run)
    outcomes = throughput.run_all(throughput.parse(["--kinds", "jobs,gpujobs"]))
    assert [one.kind for one in outcomes] == ["jobs", "gpujobs"]
    assert cluster.said == ["control plane", "jobs", "end", "control plane", "gpujobs", "end"]
