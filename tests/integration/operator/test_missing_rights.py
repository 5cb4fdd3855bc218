"""Each right that the operator or an agent lacks, and each kind that is not defined, is in its log
(I12)."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpujob_api.quantities import GIB
from gpujob_api.report import Report, WorkerPhase
from gpujob_local.control_plane.api_client import ApiError
from gpujob_local.control_plane.manifests import install_crds
from tests.harness.audit import Right, granted
from tests.harness.builders import make_report
from tests.harness.cluster import RunningControlPlane, running_control_plane
from tests.harness.operator_process import (
    SYSTEM_NAMESPACE,
    Process,
    account_kubeconfig,
    start_agent,
    start_operator,
)
from tests.harness.other_writers import Writers, again_and_again
from tests.harness.profiles import add_unused_profile
from tests.harness.stage import OURS, Stage, post_report
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

Json = dict[str, Any]
SECONDS = 180.0
OURS_GROUP, SLICES = "gpujob.dev", "endpointslices"
RIGHTS = granted("operator")
KINDS = sorted((group, resource) for group, resource, verb in RIGHTS if verb == "list")
ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases"
POD = (
    *("--identity=operator-0", "--report-service=reports"),
    *("--pod-address=10.0.0.7", "--pod-uid=of-nobody"),
)
# What is read again by name once another writer was first.
LOOKS_FOR_CLAIMS = ("", "persistentvolumeclaims", "get")
OF_A_SERVICE: set[Right] = {
    (OURS_GROUP, "gpuservices/status", "update"),
    (OURS_GROUP, "gpujobs", "create"),
    ("", "services", "get"),
    ("", "services", "update"),
}
READS_AGAIN = {
    right
    for right in RIGHTS - {LOOKS_FOR_CLAIMS} - OF_A_SERVICE
    if right[2] == "get" and right[1] != "leases"
}
WRITES_OF_A_LIFE: set[Right] = {
    ("", "services", "create"),
    ("authentication.k8s.io", "tokenreviews", "create"),
    (OURS_GROUP, "gpuprofiles", "create"),
    (OURS_GROUP, "gpuprofiles/status", "update"),
    (OURS_GROUP, "gpujobs", "delete"),
    (OURS_GROUP, "gpuprofiles", "delete"),
}
# Each of the others has a test of its own below.
WRITES = {
    right
    for right in RIGHTS - READS_AGAIN - {LOOKS_FOR_CLAIMS} - OF_A_SERVICE
    if right[2] not in ("list", "watch") and right[1] != SLICES
}
FINISHED = Report(1, WorkerPhase.FINISHED, step=9).to_text()


@contextmanager
def without(
    plane: RunningControlPlane, *rights: Right, account: str = "operator"
) -> Generator[None]:
    """The account's role lacks these rights for the time."""
    _write_role(plane, account, granted(account) - set(rights))
    try:
        yield
    finally:
        _write_role(plane, account, granted(account))


def _write_role(plane: RunningControlPlane, account: str, rights: set[Right]) -> None:
    rules = [
        {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
        for group, resource, verb in sorted(rights)
    ]
    plane.client().merge(f"{ROLES}/{account}", {"rules": rules})


def words_of(right: Right) -> str:
    """The API server's own, as they stand in a line of JSON."""
    _, resource, verb = right
    return f'cannot {verb} resource \\"{resource}\\"'


def wait_for_line(process: Process, *words: str) -> None:
    """One line of the log has all the words."""

    def said() -> bool:
        lines = process.log_path.read_text().splitlines()
        return any(all(word in line for word in words) for line in lines)

    wait_until(said, SECONDS, f"{words} in {process.log_path}")


class Taken:
    """Takes one right after the other from an operator that runs, and remembers them."""

    def __init__(self, stage: Stage, operator: Process) -> None:
        self._stage = stage
        self._operator = operator
        self.rights: set[Right] = set()

    def from_it(
        self,
        group: str,
        resource: str,
        verb: str,
        provoke: Callable[[], object],
        meanwhile: Callable[[], bool] = lambda: True,
    ) -> None:
        """Until its log says which right it lacks, and `meanwhile`, called again and again, is
        true.
        """
        right, stage = (group, resource, verb), self._stage
        assert right in RIGHTS
        with without(stage.plane, right):
            provoke()
            stage.wait(lambda: meanwhile() and self._said(right), f"{right}", SECONDS)
        self.rights.add(right)
        stage.wait(lambda: somebody_leads(stage), "it leads again", SECONDS)

    def _said(self, right: Right) -> bool:
        return words_of(right) in self._operator.log_path.read_text()


def test_without_our_kinds_it_says_what_to_install_and_goes_on_once_they_are_there(
    tmp_path: Path,
) -> None:
    with running_control_plane(crds=False) as plane:
        kubeconfig = account_kubeconfig(plane, "operator", tmp_path)
        operator = start_operator(kubeconfig, tmp_path)
        try:
            wait_for_line(operator, "list failed", '"kind":"GPUNode"', "crds/")
            install_crds(plane.client())
            operator.wait_for("leadership changed", SECONDS, leads=True)
        finally:
            operator.kill()


@pytest.mark.promise("I12")
@pytest.mark.parametrize(("group", "resource"), KINDS)
def test_a_kind_that_it_may_not_list(stage: Stage, group: str, resource: str) -> None:
    right = (group, resource, "list")
    with without(stage.plane, right):
        wait_for_line(stage.operator(), words_of(right))


@pytest.mark.promise("I12")
def test_kinds_that_it_may_not_watch(stage: Stage) -> None:
    rights = [(group, resource, "watch") for group, resource in KINDS]
    with without(stage.plane, *rights):
        operator = stage.operator()
        for right in rights:
            wait_for_line(operator, words_of(right))


@pytest.mark.promise("I12")
def test_what_it_may_not_write(stage: Stage) -> None:
    """One right after the other is taken from an operator that runs."""
    operator = stage.operator(*POD)
    operator.wait_for("leadership changed", SECONDS, leads=True)
    # Room for all: a job has its pod even while it cannot be written that the job starts.
    stage.gpus = 2
    stage.measure()
    taken = Taken(stage, operator)
    queue, jobs, pods = "gpuqueues/status", "gpujobs/status", "pods"

    taken.from_it(OURS_GROUP, queue, "update", lambda: create_queue(stage, f"queue-{stage.node}"))
    taken.from_it(OURS_GROUP, jobs, "update", lambda: shared_job(stage, "unsaid"))
    taken.from_it(
        *("", pods, "create"),
        lambda: shared_job(stage, "podless"),
        meanwhile=lambda: "files/operator-rules.yaml" in said(stage),
    )
    taken.from_it("", "events", "create", lambda: shared_job(stage, "silent"))
    # A job that is suspended before it has a pod needs no deletion.
    stage.wait(lambda: "silent-1-0" in stage.pod_names(), "the job has its pod", SECONDS)
    taken.from_it("", pods, "delete", lambda: suspend_all(stage))
    for verb, provoke in (
        ("update", lambda: None),
        ("get", lambda: None),
        ("create", lambda: delete_all(stage, LEASES)),
    ):
        taken.from_it("coordination.k8s.io", "leases", verb, provoke)
    assert taken.rights == WRITES - WRITES_OF_A_LIFE


@pytest.mark.promise("I12")
def test_what_it_may_not_write_of_a_jobs_life(stage: Stage) -> None:
    """What is learned of a job, its Service, whose a report is, and what goes at the end."""
    operator = stage.operator(*POD)
    reports = operator.wait_for("started", SECONDS)["reports"]
    operator.wait_for("leadership changed", SECONDS, leads=True)
    taken = Taken(stage, operator)
    profiles = f"{OURS}/namespaces/{stage.namespace}/gpuprofiles"

    run_pod_of(stage, "learned")

    def refused() -> bool:
        """With the words, which the worker prints."""
        status, answer = report(stage, reports, "learned")
        return status == 503 and "tokenreviews" in answer["error"]

    taken.from_it("authentication.k8s.io", "tokenreviews", "create", lambda: None, refused)
    measure(stage, "learned")
    taken.from_it(*(OURS_GROUP, "gpuprofiles", "create"), lambda: report(stage, reports, "learned"))
    stage.wait(lambda: has_entries(stage, profiles), "what was learned is kept", SECONDS)
    stage.end_pod("learned-1-0", 0, FINISHED)
    stage.wait_phase("Succeeded", "learned", SECONDS)
    stage.measure()
    run_pod_of(stage, "taught", ttlSecondsAfterFinished=0)
    measure(stage, "taught")
    taken.from_it(
        *(OURS_GROUP, "gpuprofiles/status", "update"), lambda: report(stage, reports, "taught")
    )
    taken.from_it(OURS_GROUP, "gpujobs", "delete", lambda: stage.end_pod("taught-1-0", 0, FINISHED))
    stage.wait(
        lambda: "taught" not in names(stage, stage.jobs_path), "the finished job is gone", SECONDS
    )
    taken.from_it(
        OURS_GROUP, "gpuprofiles", "delete", lambda: add_unused_profile(stage.client, profiles)
    )
    stage.gpus = 2
    stage.measure()
    taken.from_it("", "services", "create", lambda: stage.apply_job("gang", workers=2))
    gang = lambda: [name for name in stage.pod_names() if name.startswith("gang")]  # noqa: E731
    stage.wait(lambda: len(gang()) == 2, "the next attempt has its pods", SECONDS)
    assert taken.rights == WRITES_OF_A_LIFE


@pytest.mark.promise("I12")
def test_what_it_may_not_do_for_a_service(stage: Stage) -> None:
    operator = stage.operator(*POD)
    operator.wait_for("leadership changed", SECONDS, leads=True)
    stage.measure()
    taken = Taken(stage, operator)
    taken.from_it(
        *(OURS_GROUP, "gpuservices/status", "update"),
        lambda: create_service(stage, "unsaid", suspend=True),
    )
    taken.from_it(OURS_GROUP, "gpujobs", "create", lambda: create_service(stage, "empty"))

    def taken_name() -> None:
        front = {"metadata": {"name": "fronted"}, "spec": {"ports": [{"port": 80}]}}
        stage.client.create(f"/api/v1/namespaces/{stage.namespace}/services", front)
        create_service(stage, "fronted", suspend=True)

    taken.from_it("", "services", "get", taken_name)

    def needs_a_gate() -> None:
        path = f"{OURS}/namespaces/{stage.namespace}/gpuservices/unsaid"
        stage.client.merge(path, {"spec": {"replicas": {"minimum": 0}}})

    taken.from_it("", "services", "update", needs_a_gate)
    assert taken.rights == OF_A_SERVICE


def create_service(stage: Stage, name: str, **spec: Any) -> None:
    worker = {"name": "worker", "image": "server:1"}
    template = {"spec": {"containers": [worker]}}
    body = {"apiVersion": "gpujob.dev/v1alpha1", "kind": "GPUService", "metadata": {"name": name}}
    path = f"{OURS}/namespaces/{stage.namespace}/gpuservices"
    stage.client.create(path, body | {"spec": {"template": template} | spec})


@pytest.mark.promise("I12")
@pytest.mark.parametrize("verb", sorted(verb for _, kind, verb in RIGHTS if kind == SLICES))
def test_where_it_may_not_say_that_it_takes_reports(stage: Stage, verb: str) -> None:
    """It says so until it may."""
    right = ("discovery.k8s.io", SLICES, verb)
    with without(stage.plane, right):
        operator = stage.operator_in_a_pod(stage.node, "10.0.0.7", f"reports-{stage.node}")
        wait_for_line(operator, "reports are not sent to this pod yet", words_of(right))
    path = f"/apis/discovery.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/{SLICES}"
    stage.wait(lambda: f"reports-{stage.node}-ipv4" in names(stage, path), "the slice", SECONDS)


@pytest.mark.promise("I12")
def test_what_it_may_not_read_again(stage: Stage) -> None:
    """An object is read where another writer was first: these rights are used then."""
    operator = stage.operator(*POD)
    operator.wait_for("leadership changed", SECONDS, leads=True)
    taken = Taken(stage, operator)
    queue = f"queue-{stage.node}"
    create_queue(stage, queue)
    shared_job(stage, "touched", queue=queue)
    writers = Writers(stage, "touched")
    for kind, path in (
        ("gpujobs", f"{stage.jobs_path}/touched"),
        ("gpuqueues", f"{OURS}/gpuqueues/{queue}"),
    ):
        with again_and_again(lambda path=path: writers.annotate(path)):
            taken.from_it(OURS_GROUP, kind, "get", lambda: None, writers.suspend_and_resume)
    with again_and_again(writers.annotate_pods):
        taken.from_it("", "pods", "get", lambda: None, writers.suspend_and_resume)
    with again_and_again(writers.annotate_unused_profile):
        taken.from_it(OURS_GROUP, "gpuprofiles", "get", lambda: None)
    assert taken.rights == READS_AGAIN


def test_where_it_may_not_look_for_claims_it_places_without(stage: Stage) -> None:
    with without(stage.plane, LOOKS_FOR_CLAIMS):
        operator = stage.operator(*POD)
        operator.wait_for("leadership changed", SECONDS, leads=True)
        stage.apply_job("claimed", checkpoint={"volumeClaimName": "absent"})
        wait_for_line(operator, "claims are not looked for", words_of(LOOKS_FOR_CLAIMS))
        stage.wait(lambda: "claimed-1-0" in stage.pod_names(), "its pod", SECONDS)


def create_queue(stage: Stage, name: str) -> None:
    body = {"apiVersion": "gpujob.dev/v1alpha1", "kind": "GPUQueue", "metadata": {"name": name}}
    stage.client.create(f"{OURS}/gpuqueues", body | {"spec": {}})


def shared_job(stage: Stage, name: str, **spec: Any) -> None:
    sharing = {"mode": "Shared", "maxSlowdownPercent": 100}
    stage.apply_job(name, gpu={"memory": "1Gi"}, sharing=sharing, **spec)


def run_pod_of(stage: Stage, job: str, **spec: Any) -> None:
    """A job whose worker runs, of a workload of its own."""
    stage.apply_job(job, workload=job, **spec)
    stage.wait(lambda: f"{job}-1-0" in stage.pod_names(), f"{job} has its pod", SECONDS)
    stage.run_pod(f"{job}-1-0")
    stage.wait_phase("Running", job, SECONDS)


def pod_of(stage: Stage, job: str) -> Json:
    return stage.client.get(f"{stage.pods_path}/{job}-1-0")


def measure(stage: Stage, job: str) -> None:
    """Its worker has memory on the GPU."""
    uid = pod_of(stage, job)["metadata"]["uid"]
    stage.measure([{"pid": 7, "memoryBytes": 2 * GIB, "podUid": uid}])


def report(stage: Stage, url: str, job: str) -> tuple[int, Json]:
    """Its worker trains, and says how long a step takes."""
    return post_report(url, stage.token(pod_of(stage, job)), make_report())


def has_entries(stage: Stage, profiles_path: str) -> bool:
    items = stage.client.get(profiles_path)["items"]
    return any(item.get("status", {}).get("entries") for item in items)


@pytest.mark.promise("I12")
@pytest.mark.parametrize("right", sorted(granted("agent")), ids=" ".join)
def test_what_an_agent_may_not(stage: Stage, right: Right) -> None:
    """It says so, and goes on by itself."""
    kubeconfig = account_kubeconfig(stage.plane, "agent", stage.folder)
    name = f"{stage.node}-x"
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    stage.client.create("/api/v1/nodes", node)
    with without(stage.plane, right, account="agent"):
        agent = start_agent(kubeconfig, stage.folder, f"--node={name}", "--interval-seconds=0.2")
        stage.processes.append(agent)
        wait_for_line(agent, words_of(right))
    stage.wait(lambda: name in gpu_nodes(stage), "the agent's GPUNode", SECONDS)
    assert agent.stop() == 0
    stage.client.delete(f"/api/v1/nodes/{name}")
    if right == ("", "nodes", "get"):
        # An agent that may not read its Node cannot make the GPUNode follow it.
        assert "the GPUNode will outlive its Node" in agent.log_path.read_text()
        stage.client.delete(f"{OURS}/gpunodes/{name}")
    stage.wait(lambda: name not in gpu_nodes(stage), "it goes with its node", SECONDS)


def gpu_nodes(stage: Stage) -> list[str]:
    return names(stage, f"{OURS}/gpunodes")


def names(stage: Stage, path: str) -> list[str]:
    return [one["metadata"]["name"] for one in stage.client.get(path)["items"]]


def somebody_leads(stage: Stage) -> bool:
    try:
        return stage.lease_holder() != ""
    except ApiError:
        return False


def said(stage: Stage) -> str:
    """By all jobs."""
    jobs = stage.client.get(stage.jobs_path)["items"]
    conditions = [one for job in jobs for one in job.get("status", {}).get("conditions", [])]
    return " ".join(one["message"] for one in conditions)


def suspend_all(stage: Stage) -> None:
    for name in names(stage, stage.jobs_path):
        stage.client.merge(f"{stage.jobs_path}/{name}", {"spec": {"suspend": True}})


def delete_all(stage: Stage, path: str) -> None:
    for name in names(stage, path):
        stage.client.delete(f"{path}/{name}")
