"""Each right that the operator or an agent lacks, and each kind that is not defined, is in its log
(I12)."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpujob_local.control_plane.api_client import ApiError
from gpujob_local.control_plane.manifests import install_crds
from tests.harness.audit import Right, granted
from tests.harness.cluster import RunningControlPlane, running_control_plane
from tests.harness.operator_process import (
    SYSTEM_NAMESPACE,
    Process,
    account_kubeconfig,
    start_agent,
    start_operator,
)
from tests.harness.stage import OURS, Stage
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

SECONDS = 180.0
RIGHTS = granted("operator")
KINDS = sorted((group, resource) for group, resource, verb in RIGHTS if verb == "list")
ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases"
POD = (
    *("--identity=operator-0", "--report-service=reports"),
    *("--pod-address=10.0.0.7", "--pod-uid=of-nobody"),
)


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


def test_without_our_kinds_it_says_what_to_install_and_goes_on_once_they_are_there(
    tmp_path: Path,
) -> None:
    with running_control_plane(crds=False) as plane:
        kubeconfig = account_kubeconfig(plane, "operator", tmp_path)
        operator = start_operator(kubeconfig, tmp_path)
        try:
            wait_for_line(operator, "list failed", '"kind":"GPUJob"', "crds/")
            install_crds(plane.client())
            operator.wait_for("leadership changed", SECONDS, leads=True)
        finally:
            operator.kill()


@pytest.mark.parametrize(("group", "resource"), KINDS)
def test_a_kind_that_it_may_not_list(stage: Stage, group: str, resource: str) -> None:
    right = (group, resource, "list")
    with without(stage.plane, right):
        wait_for_line(stage.operator(), words_of(right))


def test_kinds_that_it_may_not_watch(stage: Stage) -> None:
    rights = [(group, resource, "watch") for group, resource in KINDS]
    with without(stage.plane, *rights):
        operator = stage.operator()
        for right in rights:
            wait_for_line(operator, words_of(right))


def test_what_it_may_not_write(stage: Stage) -> None:
    """One right after the other is taken from an operator that runs."""
    operator = stage.operator(*POD)
    operator.wait_for("leadership changed", SECONDS, leads=True)

    def lacks(group: str, resource: str, verb: str, provoke: Callable[[], object]) -> None:
        right = (group, resource, verb)
        assert right in RIGHTS
        with without(stage.plane, right):
            provoke()
            stage.wait(
                lambda: words_of(right) in operator.log_path.read_text(), f"{right}", SECONDS
            )
        stage.wait(lambda: somebody_leads(stage), "it leads again", SECONDS)

    def queue(name: str) -> None:
        body = {"apiVersion": "gpujob.dev/v1alpha1", "kind": "GPUQueue", "metadata": {"name": name}}
        stage.client.create(f"{OURS}/gpuqueues", body | {"spec": {}})

    def job(name: str) -> None:
        sharing = {"mode": "Shared", "maxSlowdownPercent": 100}
        stage.apply_job(name, gpu={"memory": "1Gi"}, sharing=sharing)

    lacks("gpujob.dev", "gpuqueues/status", "patch", lambda: queue(f"queue-{stage.node}"))
    lacks("gpujob.dev", "gpujobs/status", "patch", lambda: job("unsaid"))
    lacks("", "pods", "create", lambda: job("podless"))
    stage.wait(lambda: "files/operator-rules.yaml" in said(stage), "what to do", SECONDS)
    lacks("", "events", "create", lambda: job("silent"))
    # A job that is suspended before it has a pod needs no deletion.
    stage.wait(lambda: "silent-1-0" in stage.pod_names(), "the job has its pod", SECONDS)
    lacks("", "pods", "delete", lambda: suspend_all(stage))
    lacks("coordination.k8s.io", "leases", "update", lambda: None)
    lacks("coordination.k8s.io", "leases", "get", lambda: None)
    lacks("coordination.k8s.io", "leases", "create", lambda: delete_all(stage, LEASES))


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
    return [one["metadata"]["name"] for one in stage.client.get(f"{OURS}/gpunodes")["items"]]


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
    for job in stage.client.get(stage.jobs_path)["items"]:
        stage.client.merge(
            f"{stage.jobs_path}/{job['metadata']['name']}", {"spec": {"suspend": True}}
        )


def delete_all(stage: Stage, path: str) -> None:
    for one in stage.client.get(path)["items"]:
        stage.client.delete(f"{path}/{one['metadata']['name']}")
