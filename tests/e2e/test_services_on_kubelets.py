"""Services on real kubelets: requests to the Service's name, through DNS and kube-proxy."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from gpujob_local.cluster.options import WORKER_IMAGE
from tests.harness.ground import Team, drained, wait_for_nodes
from tests.harness.visitors import open_address, visitor
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

Json = dict[str, Any]

NAME = "digits"
READY_SECONDS = 240.0
# Ends a load, in the pod that sends it.
STOP_FILE, COUNTS_FILE = "/tmp/stop", "/tmp/counts"
LOAD_ENDS_SECONDS = 90.0
# One request after the other, each over a connection of its own, so that kube-proxy chooses again.
# A refusal (503) names a time for the next try; everything else that is no answer is lost.
_LOAD = f"""
import collections, json, os, sys, time, urllib.error, urllib.request

counts = collections.Counter()
inputs = [{{"name": "image", "datatype": "UINT8", "shape": [1, 1, 8, 8], "data": list(range(64))}}]
while not os.path.exists({STOP_FILE!r}):
    request = urllib.request.Request(sys.argv[1], json.dumps({{"inputs": inputs}}).encode())
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["outputs"]
        counts["answered"] += 1
    except urllib.error.HTTPError as error:
        counts["refused" if error.code == 503 else f"{{error.code}}: {{error.read()[:200]}}"] += 1
    except Exception as error:
        counts[repr(error)] += 1
    time.sleep(0.1)
print(json.dumps(counts))
"""


def service(namespace: str, **spec: Any) -> Json:
    """The example's script, whose image has it. Nothing is measured to choose a backend."""
    worker = {
        "name": "worker",
        "image": WORKER_IMAGE,
        "command": ["gpujob-run", "--", "python", "serve_digits.py"],
    }
    body: Json = {
        "objective": {"latencyMilliseconds": 500, "percentile": 99},
        "optimize": {"backend": "Eager"},
        "gpu": {"memory": "700Mi"},
        "template": {"spec": {"containers": [worker]}},
    }
    return {
        "apiVersion": "gpujob.dev/v1alpha1",
        "kind": "GPUService",
        "metadata": {"name": NAME, "namespace": namespace},
        "spec": body | spec,
    }


@dataclass(frozen=True, slots=True)
class Digits:
    """The service of a team, and a pod of the team that sends requests to its name."""

    team: Team
    client_pod: str

    @property
    def path(self) -> str:
        return f"/apis/gpujob.dev/v1alpha1/namespaces/{self.team.namespace}/gpuservices/{NAME}"

    def status(self) -> Json:
        return self.team.client.get(self.path).get("status") or {}

    def ready(self) -> Json:
        """The condition Ready, or {}."""
        conditions = self.status().get("conditions") or ()
        return next((one for one in conditions if one["type"] == "Ready"), {})

    def edit(self, spec: Json) -> None:
        self.team.client.merge(self.path, {"spec": spec})

    def until_ready(self, replicas: int) -> None:
        self.until(
            lambda: (
                self.status().get("readyReplicas") == replicas
                and self.ready().get("reason") == "ReplicasReady"
            )
        )

    def until(self, condition: Any) -> None:
        try:
            wait_until(condition, READY_SECONDS)
        except AssertionError as error:
            jobs = self.team.client.get(self.team.jobs_path)["items"]
            said = {one["metadata"]["name"]: one.get("status") for one in jobs}
            raise AssertionError(f"{error}; {self.status()}; {said}") from None

    def replica_uids(self) -> set[str]:
        """The UIDs of the pods of its replicas."""
        return {pod["metadata"]["uid"] for pod in self._pods("gpujob.dev/job")}

    def gates(self) -> list[Json]:
        return self._pods("gpujob.dev/gate")

    def _pods(self, label: str) -> list[Json]:
        path = f"/api/v1/namespaces/{self.team.namespace}/pods"
        return self.team.client.get(path, labelSelector=label)["items"]

    @contextmanager
    def load(self) -> Generator[Json]:
        """Sends requests meanwhile. Yields a dict that has their number by result at the end."""
        url = f"http://{NAME}.{self.team.namespace}:8000/v2/models/{NAME}/infer"
        counts: Json = {}
        # Longer than one command may take, so it goes on without its command.
        start = f'rm -f {STOP_FILE}; python -c "$0" "$1" > {COUNTS_FILE} 2>&1 &'
        self._run("sh", "-c", start, _LOAD, url)
        try:
            yield counts
        finally:
            self._run("touch", STOP_FILE)
        wait_until(lambda: bool(self._run("cat", COUNTS_FILE).strip()), LOAD_ENDS_SECONDS)
        counts.update(json.loads(self._run("cat", COUNTS_FILE)))

    def _run(self, *command: str) -> str:
        return self.team.cluster.kubectl(
            "exec", "--namespace", self.team.namespace, self.client_pod, "--", *command
        )


@pytest.fixture
def digits(team: Team) -> Digits:
    pod = visitor(team, next(iter(team.cluster.nodes)))
    open_address(team, pod)
    return Digits(team, pod)


def test_a_service_loses_no_request_while_it_is_edited(digits: Digits) -> None:
    digits.team.apply(service(digits.team.namespace, replicas={"minimum": 2, "maximum": 2}))
    digits.until_ready(2)
    before = digits.replica_uids()
    with digits.load() as counts:
        digits.edit({"objective": {"latencyMilliseconds": 400}})
        digits.until(lambda: not digits.replica_uids() & before)
        digits.until_ready(2)
    assert set(counts) == {"answered"}, counts
    assert counts["answered"] > 20


@pytest.mark.slow
def test_a_drained_node_takes_no_request_with_it(digits: Digits) -> None:
    """The visitor is drained, too, if it is on that node: so it is a replica of the other one."""
    digits.team.apply(service(digits.team.namespace, replicas={"minimum": 2, "maximum": 2}))
    digits.until_ready(2)
    _, other = digits.team.cluster.nodes
    with digits.load() as counts, drained(digits.team, other):
        digits.until_ready(2)
    wait_for_nodes(digits.team.cluster)
    assert set(counts) == {"answered"}, counts


def test_a_request_to_the_name_starts_a_replica(digits: Digits) -> None:
    """Through the gate: an image of ours under Pod Security "restricted", on a real kubelet."""
    replicas = {"minimum": 0, "stopAfterSeconds": 60, "coldStartSeconds": 180}
    digits.team.apply(service(digits.team.namespace, replicas=replicas))
    digits.until(
        lambda: digits.ready().get("reason") == "ScaledToZero" and not digits.replica_uids()
    )
    assert [gate["status"]["phase"] for gate in digits.gates()] == ["Running"]
    with digits.load() as counts:
        digits.until_ready(1)
    assert set(counts) == {"answered"}, counts


@pytest.mark.slow
def test_a_parked_replica_wakes_for_a_request_to_the_name(digits: Digits) -> None:
    replicas = {"minimum": 0, "parkAfterSeconds": 5, "stopAfterSeconds": 3600}
    digits.team.apply(service(digits.team.namespace, replicas=replicas))
    digits.until(lambda: digits.ready().get("reason") == "Parked")
    parked = digits.replica_uids()
    with digits.load() as counts:
        digits.until(lambda: digits.ready().get("reason") == "ReplicasReady")
    assert set(counts) == {"answered"}, counts
    assert digits.replica_uids() == parked
